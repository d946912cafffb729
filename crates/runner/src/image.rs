//! Unpacking the layers of an image: strict, because its content is somebody's. Files, directories and links are made below one
//! directory, and nothing that is there can lead out of it: a link that is absolute, or climbs too far, is made to mean the same place
//! below that directory, as it would for a process whose root it is. Owners, special bits and attributes are left out; devices and the
//! like end the attempt.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use api::image::{Compression, IMAGE_FILE, ImageFiles, layer_file};
use flate2::read::MultiGzDecoder;

use crate::unpack::directory_within;

/// What an image may hold, all layers together: in files, and in bytes once they are unpacked.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub entries: u64,
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { entries: 300_000, bytes: 4 * 1024 * 1024 * 1024 }
    }
}

const DEPTH: usize = 100;
const DESCRIPTION_LIMIT: u64 = 1024 * 1024;
/// A mark that the rest of its name is gone, or, alone, everything that was in the directory before.
const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("layer {layer} of the image holds {path}, which is refused: {why}; build the image without it")]
    Refused { layer: usize, path: String, why: &'static str },
    #[error("the image holds more than {limit} {what} once it is unpacked; make it smaller")]
    TooLarge { what: &'static str, limit: u64 },
    #[error("what was fetched of the image is damaged: {0}")]
    Damaged(String),
    #[error("layer {layer} of the image could not be unpacked at {path}: {source}")]
    Io { layer: usize, path: String, source: io::Error },
}

/// Unpacks the image of a bundle into `root`, which must be an empty directory of our own, and says what the image says of itself.
pub fn unpack(bundle: impl Read, root: &Path, limits: Limits) -> Result<ImageFiles, Error> {
    let damaged = |error: io::Error| Error::Damaged(error.to_string());
    let root = root.canonicalize().map_err(damaged)?;
    let mut archive = tar::Archive::new(bundle);
    let mut parts = archive.entries().map_err(damaged)?;
    let mut next = |name: &str| {
        let part =
            parts.next().ok_or_else(|| Error::Damaged(format!("it has no {name}")))?.map_err(damaged)?;
        let is_it = part.path().is_ok_and(|path| path == Path::new(name));
        if is_it { Ok(part) } else { Err(Error::Damaged(format!("{name} is not in its place"))) }
    };
    let mut text = Vec::new();
    next(IMAGE_FILE)?.take(DESCRIPTION_LIMIT).read_to_end(&mut text).map_err(damaged)?;
    let files: ImageFiles =
        serde_json::from_slice(&text).map_err(|error| Error::Damaged(error.to_string()))?;
    let mut room = Room { entries: limits.entries, bytes: limits.bytes, limits };
    for (index, layer) in files.layers.iter().enumerate() {
        let part = next(&layer_file(index))?;
        let mut layer_of = Layer { number: index + 1, root: &root, room: &mut room, made: HashSet::new() };
        match layer.compression {
            Compression::None => layer_of.unpack(part)?,
            Compression::Gzip => {
                // Names and padding are nobody's size.
                let most = limits.bytes.saturating_add(limits.entries.saturating_mul(4096));
                layer_of.unpack(MultiGzDecoder::new(part).take(most))?;
            }
        }
    }
    Ok(files)
}

/// What is left of the limits.
struct Room {
    entries: u64,
    bytes: u64,
    limits: Limits,
}

impl Room {
    fn take(&mut self, bytes: u64) -> Result<(), Error> {
        let entries = self.entries.checked_sub(1);
        self.entries =
            entries.ok_or(Error::TooLarge { what: "files and directories", limit: self.limits.entries })?;
        let bytes = self.bytes.checked_sub(bytes);
        self.bytes = bytes.ok_or(Error::TooLarge { what: "bytes", limit: self.limits.bytes })?;
        Ok(())
    }
}

/// One layer on its way into the root.
struct Layer<'a> {
    number: usize,
    root: &'a Path,
    room: &'a mut Room,
    /// What this layer has made; marks are about what was there before it.
    made: HashSet<PathBuf>,
}

impl Layer<'_> {
    /// O(entries · depth).
    fn unpack(&mut self, archive: impl Read) -> Result<(), Error> {
        let mut archive = tar::Archive::new(archive);
        let here = PathBuf::from(".");
        for entry in archive.entries().map_err(self.io(&here))? {
            let mut entry = entry.map_err(self.io(&here))?;
            self.room.take(entry.size())?;
            let path = entry.path().map_err(self.io(&here))?.into_owned();
            let path = self.plain(&path)?;
            self.entry(&mut entry, &path)?;
        }
        Ok(())
    }

    fn entry(&mut self, entry: &mut tar::Entry<'_, impl Read>, path: &Path) -> Result<(), Error> {
        let kind = entry.header().entry_type();
        // The root itself is there already.
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return if kind.is_dir() { Ok(()) } else { Err(self.refused(path, "it takes the root's place")) };
        };
        let parent = self.directory(parent, path)?;
        let text = name.to_str().unwrap_or_default();
        if text == OPAQUE {
            return self.clear(&parent).map_err(self.io(path));
        }
        if let Some(gone) = text.strip_prefix(WHITEOUT) {
            let is_plain = !gone.is_empty() && gone != "." && gone != ".." && !gone.starts_with(WHITEOUT);
            let place = parent.join(gone);
            return match is_plain {
                false => Err(self.refused(path, "it marks nothing as gone")),
                true if self.made.contains(&place) => Ok(()),
                true => remove(&place).map_err(self.io(path)),
            };
        }
        let place = parent.join(name);
        match kind {
            tar::EntryType::Directory => self.make_directory(&place).map_err(self.io(path))?,
            tar::EntryType::Regular | tar::EntryType::Continuous | tar::EntryType::GNUSparse => {
                remove(&place).map_err(self.io(path))?;
                let executable = entry.header().mode().is_ok_and(|mode| mode & 0o111 != 0);
                let mode = if executable { 0o755 } else { 0o644 };
                let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&place);
                let mut file = file.map_err(self.io(path))?;
                io::copy(entry, &mut file).map_err(self.io(path))?;
            }
            tar::EntryType::Symlink => {
                let link = entry.link_name().map_err(self.io(path))?;
                let link = link.ok_or_else(|| self.refused(path, "it is a link without a target"))?;
                let link = contained(self.root, &parent, &link)
                    .ok_or_else(|| self.refused(path, "it is a link without a target"))?;
                remove(&place).map_err(self.io(path))?;
                symlink(link, &place).map_err(self.io(path))?;
            }
            tar::EntryType::Link => {
                let target = entry.link_name().map_err(self.io(path))?;
                let target = target.ok_or_else(|| self.refused(path, "it is a link without a target"))?;
                let target = self.plain(&target)?;
                let target = self.existing_file(&target, path)?;
                self.hard_link(&target, &parent, &place, path)?;
            }
            _ => {
                return Err(self.refused(path, "it is neither a file, a directory nor a link"));
            }
        }
        self.mark(place);
        Ok(())
    }

    /// Another name for a file. A symbolic link means something else in another directory, and so is made anew.
    fn hard_link(&self, target: &Path, parent: &Path, place: &Path, path: &Path) -> Result<(), Error> {
        if target == place {
            return Ok(());
        }
        let io = self.io(path);
        let link = fs::read_link(target).ok();
        remove(place).map_err(&io)?;
        let Some(link) = link else { return fs::hard_link(target, place).map_err(&io) };
        // As all links here it climbs to the root first.
        let below = link.components().filter(|part| matches!(part, Component::Normal(_)));
        let meant: PathBuf = std::iter::once(Component::RootDir).chain(below).collect();
        let link = contained(self.root, parent, &meant)
            .ok_or_else(|| self.refused(path, "it is a link without a target"))?;
        symlink(link, place).map_err(&io)
    }

    /// Remembers what this layer has made, and so the directories that it is in.
    fn mark(&mut self, place: PathBuf) {
        let mut above: &Path = &place;
        while let Some(next) = above.parent().filter(|next| *next != self.root) {
            if !self.made.insert(next.to_owned()) {
                break;
            }
            above = next;
        }
        self.made.insert(place);
    }

    /// The parts of a name as they are below the root; `..` is refused, wherever it stands.
    fn plain(&self, path: &Path) -> Result<PathBuf, Error> {
        let mut plain = PathBuf::new();
        for part in path.components() {
            match part {
                Component::Normal(part) => plain.push(part),
                Component::RootDir | Component::CurDir => {}
                Component::ParentDir | Component::Prefix(_) => {
                    return Err(self.refused(path, "its name could reach outside the image"));
                }
            }
        }
        if plain.components().count() > DEPTH || plain.as_os_str().len() > 4096 {
            return Err(self.refused(path, "its name is too long or too deep"));
        }
        Ok(plain)
    }

    /// The real directory that a name means, made where it is missing. Links on the way are followed: none leads out.
    fn directory(&mut self, path: &Path, of: &Path) -> Result<PathBuf, Error> {
        let mut at = self.root.to_owned();
        for part in path.components() {
            let next = at.join(part);
            at = match fs::symlink_metadata(&next) {
                Ok(found) if found.is_dir() => next,
                Ok(found) if found.is_symlink() => self.behind(&next, of)?,
                Ok(_) => {
                    self.make_directory(&next).map_err(self.io(of))?;
                    next
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.make_directory(&next).map_err(self.io(of))?;
                    next
                }
                Err(error) => return Err(self.io(of)(error)),
            };
        }
        Ok(at)
    }

    fn behind(&self, link: &Path, of: &Path) -> Result<PathBuf, Error> {
        let real = link.canonicalize().ok().filter(|real| real.is_dir());
        let real = real.ok_or_else(|| self.refused(of, "its directory is a link that leads nowhere"))?;
        // Links are made so that this holds; that it does is looked at all the same.
        if real.starts_with(self.root) {
            Ok(real)
        } else {
            Err(self.refused(of, "its directory is a link that leads outside the image"))
        }
    }

    fn existing_file(&mut self, target: &Path, of: &Path) -> Result<PathBuf, Error> {
        let missing = "it is a link to a file that is not there";
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Err(self.refused(of, missing));
        };
        let place = self.directory(parent, of)?.join(name);
        let is_file = fs::symlink_metadata(&place).is_ok_and(|found| found.is_file() || found.is_symlink());
        if is_file { Ok(place) } else { Err(self.refused(of, missing)) }
    }

    fn make_directory(&mut self, place: &Path) -> io::Result<()> {
        if fs::symlink_metadata(place).is_ok_and(|found| found.is_dir()) {
            return Ok(());
        }
        remove(place)?;
        DirBuilder::new().mode(0o755).create(place)?;
        self.mark(place.to_owned());
        Ok(())
    }

    /// Takes away what earlier layers have put into a directory. O(files below it).
    fn clear(&self, directory: &Path) -> io::Result<()> {
        for found in fs::read_dir(directory)? {
            let place = found?.path();
            if !self.made.contains(&place) {
                remove(&place)?;
            } else if fs::symlink_metadata(&place)?.is_dir() {
                self.clear(&place)?;
            }
        }
        Ok(())
    }

    fn refused(&self, path: &Path, why: &'static str) -> Error {
        Error::Refused { layer: self.number, path: path.display().to_string(), why }
    }

    fn io(&self, path: &Path) -> impl Fn(io::Error) -> Error + use<> {
        let (layer, path) = (self.number, path.display().to_string());
        move |source| Error::Io { layer, path: path.clone(), source }
    }
}

/// What is at a place goes, with all below it; links are not followed.
fn remove(place: &Path) -> io::Result<()> {
    let gone = match fs::symlink_metadata(place) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(place),
        Ok(_) => fs::remove_file(place),
        Err(error) => Err(error),
    };
    match gone {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// What a link in the directory `parent`, which is below `root`, is made to say so that it means what it would mean if `root` were the root
/// of everything: relative, and climbing no higher than that.
fn contained(root: &Path, parent: &Path, link: &Path) -> Option<PathBuf> {
    let inside = parent.strip_prefix(root).ok()?;
    let depth = inside.components().count();
    let mut parts: Vec<&std::ffi::OsStr> = Vec::new();
    let start: &Path = if link.is_absolute() { Path::new("") } else { inside };
    for part in start.components().chain(link.components()) {
        match part {
            Component::Normal(part) => parts.push(part),
            // Above the root is the root.
            Component::ParentDir => drop(parts.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    if link.as_os_str().is_empty() {
        return None;
    }
    let up = std::iter::repeat_n(std::ffi::OsStr::new(".."), depth);
    let whole: PathBuf = up.chain(parts).collect();
    Some(if whole.as_os_str().is_empty() { PathBuf::from(".") } else { whole })
}

/// An image that is unpacked.
#[derive(Debug)]
pub(crate) struct Unpacked {
    root: PathBuf,
    /// Where its programs start.
    pub(crate) working_directory: PathBuf,
    files: ImageFiles,
}

impl Unpacked {
    /// Nothing where the image names a working directory that it does not have.
    pub(crate) fn new(root: &Path, files: ImageFiles) -> Option<Self> {
        let said = files.working_directory.trim_start_matches('/');
        let working_directory = directory_within(root, root, said)?;
        Some(Self { root: root.to_owned(), working_directory, files })
    }

    /// What a path of the image is here, if it is there. Relative ones are of the working directory, else of the root.
    pub(crate) fn find(&self, path: &Path) -> Option<PathBuf> {
        let relative: PathBuf =
            path.components().filter(|part| !matches!(part, Component::RootDir)).collect();
        let from_here = (!path.is_absolute()).then(|| self.working_directory.join(&relative));
        let places = from_here.into_iter().chain([self.root.join(&relative)]);
        let root = self.root.canonicalize().ok()?;
        let is_inside = |place: &PathBuf| place.canonicalize().is_ok_and(|real| real.starts_with(&root));
        places.into_iter().find(is_inside)
    }

    /// What the image gives to its programs, but for `PATH`: a path of the image is the same of the unpacked one.
    pub(crate) fn environment(&self) -> Vec<(OsString, OsString)> {
        let pairs = self.files.environment.iter().filter_map(|pair| pair.split_once('='));
        let pairs =
            pairs.filter(|(name, value)| !name.is_empty() && *name != "PATH" && !value.contains('\0'));
        let here = |value: &str| {
            let path = Path::new(value);
            let found = if path.is_absolute() && path != Path::new("/") { self.find(path) } else { None };
            found.map_or_else(|| OsString::from(value), OsString::from)
        };
        pairs.map(|(name, value)| (OsString::from(name), here(value))).collect()
    }

    /// Where the image looks for programs, as far as there is something.
    pub(crate) fn search_path(&self) -> Vec<PathBuf> {
        let said = self.files.environment.iter().rev().find_map(|pair| pair.strip_prefix("PATH="));
        let said = said.unwrap_or("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        std::env::split_paths(said)
            .filter(|path| path.is_absolute())
            .filter_map(|path| self.find(&path))
            .collect()
    }
}

#[cfg(test)]
mod tests;
