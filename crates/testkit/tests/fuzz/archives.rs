//! Archives: the bundle that a runner unpacks, the layers of an image, and the zip files that tools and providers come in. Whatever they hold, nothing is made
//! outside of the directory, no link leads out of it, and no more comes out than the limits allow.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use api::image::{Compression, IMAGE_FILE, ImageFiles, ImageLayer, layer_file};
use api::text::Sha256;
use runner::image::Limits;
use tempfile::TempDir;
use tofu::store::archive;

use super::fuzz;

const NEIGHBOUR: &str = "what was there before";

/// A directory to unpack into, beside a file that must stay as it is.
struct Place {
    _scratch: TempDir,
    outside: PathBuf,
    target: PathBuf,
}

impl Place {
    fn new() -> Self {
        // Thousands of files are made and synchronised: memory is enough for them.
        let memory = Path::new("/dev/shm");
        let scratch = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }.unwrap();
        let outside = scratch.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("neighbour"), NEIGHBOUR).unwrap();
        Self { target: outside.join("target"), _scratch: scratch, outside }
    }

    /// An empty target.
    fn fresh(&self) -> &Path {
        if self.target.exists() {
            fs::remove_dir_all(&self.target).unwrap();
        }
        fs::create_dir(&self.target).unwrap();
        &self.target
    }

    /// Everything that was made, once it is sure that nothing else was touched and that nothing can be more than it should.
    fn made(&self) -> Vec<PathBuf> {
        let mut beside: Vec<_> =
            fs::read_dir(&self.outside).unwrap().flatten().map(|entry| entry.file_name()).collect();
        beside.sort();
        assert_eq!(beside, ["neighbour", "target"], "something was made outside");
        assert_eq!(fs::read(self.outside.join("neighbour")).unwrap(), NEIGHBOUR.as_bytes());
        let root = self.target.canonicalize().unwrap();
        let made = everything_below(&self.target);
        for path in &made {
            let kind = fs::symlink_metadata(path).unwrap();
            if kind.is_symlink() {
                if let Ok(end) = path.canonicalize() {
                    assert!(end.starts_with(&root), "{} leads to {}", path.display(), end.display());
                }
                continue;
            }
            assert!(kind.is_file() || kind.is_dir(), "{} is something else", path.display());
            let mode = kind.permissions().mode() & 0o7777;
            assert!(mode & !0o755 == 0, "{} has the mode {mode:o}", path.display());
        }
        made
    }
}

fn everything_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        found.push(entry.path());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(everything_below(&entry.path()));
        }
    }
    found
}

fn bytes_of(paths: &[PathBuf]) -> u64 {
    let files = paths.iter().filter_map(|path| fs::symlink_metadata(path).ok()).filter(fs::Metadata::is_file);
    files.map(|file| file.len()).sum()
}

#[test]
fn bundle() {
    let place = Place::new();
    fuzz("bundle", |input| {
        let _ = runner::unpack::unpack(input, place.fresh());
        let made = place.made();
        assert!(bytes_of(&made) <= input.len() as u64, "more came out than was in it");
        let root = made.iter().filter_map(|path| path.strip_prefix(&place.target).ok());
        assert!(root.map(|path| path.components().count()).max().unwrap_or(0) <= 100, "it is too deep");
    });
}

/// The same as the layers of an image, one over the other.
#[test]
fn image_layers() {
    let digest = api::text::ImageDigest::new(format!("sha256:{}", "a".repeat(64))).unwrap();
    let layer = || ImageLayer { digest: digest.clone(), compression: Compression::None };
    let files = ImageFiles { layers: vec![layer(), layer()], ..ImageFiles::default() };
    let files = serde_json::to_vec(&files).unwrap();
    let place = Place::new();
    fuzz("bundle", |input| {
        let mut archive = tar::Builder::new(Vec::new());
        let (first, second) = (layer_file(0), layer_file(1));
        for (name, content) in [(IMAGE_FILE, files.as_slice()), (&first, input), (&second, input)] {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o644);
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, name, content).unwrap();
        }
        let limits = Limits { entries: 1000, bytes: 1024 * 1024 };
        let _ = runner::image::unpack(archive.into_inner().unwrap().as_slice(), place.fresh(), limits);
        let made = place.made();
        assert!(bytes_of(&made) <= limits.bytes.max(2 * input.len() as u64), "more came out than was in it");
    });
}

/// A tool or a provider: what is said about the files that came out is true of them.
#[test]
fn archive() {
    let place = Place::new();
    fuzz("archive", |input| {
        let mut packed = tempfile::tempfile().unwrap();
        packed.write_all(input).unwrap();
        one_file(&mut packed, input.len() as u64);
        let result = archive::unpack_all(&mut packed, place.fresh());
        let made = place.made();
        assert!(made.iter().all(|path| !path.is_symlink()), "packages hold no links");
        let Ok(files) = result else { return };
        let told: u64 = files.iter().map(|file| file.size).sum();
        assert_eq!(told, bytes_of(&made));
        assert!(files.len() <= 64, "{} files came out", files.len());
        assert_eq!(files.len(), made.iter().filter(|path| path.is_file()).count());
        for file in &files {
            let content = fs::read(place.target.join(&file.name)).unwrap();
            assert_eq!(content.len() as u64, file.size);
            assert_eq!(Sha256::of(&content).as_str(), file.sha256, "{}", file.name);
            assert!(is_plausible(file.size, input.len() as u64), "{} is {} bytes", file.name, file.size);
        }
    });
}

fn one_file(packed: &mut File, length: u64) {
    for name in ["terraform", "tofu"] {
        let mut out = Vec::new();
        let result = archive::unpack(packed, name, &mut out);
        // Also where it is refused in the end, which is at the first byte too many.
        assert!(is_plausible((out.len() as u64).saturating_sub(1), length), "{name} is {} bytes", out.len());
        if let Ok(size) = result {
            assert_eq!(size, out.len() as u64);
        }
    }
}

/// Small files may shrink as they like, others not a hundredfold.
fn is_plausible(size: u64, packed: u64) -> bool {
    size <= (1024 * 1024).max(51 * (packed + 1))
}
