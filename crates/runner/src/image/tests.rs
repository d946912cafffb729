#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use api::image::ImageLayer;
use api::text::ImageDigest;
use flate2::write::GzEncoder;
use tar::EntryType as Kind;

use super::*;

type Entries<'a> = &'a [(&'a str, Kind, &'a str)];

/// Written raw, because the library itself refuses to write dangerous names.
fn layer(entries: Entries<'_>) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, kind, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o4755);
        header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
        let is_link = kind.is_symlink() || kind.is_hard_link();
        if is_link {
            header.as_gnu_mut().unwrap().linkname[..content.len()].copy_from_slice(content.as_bytes());
        }
        let content = if is_link { "" } else { content };
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Packed and plain layers take turns.
fn bundle(layers: &[Entries<'_>], files: ImageFiles) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |name: &str, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, content).unwrap();
    };
    let compression =
        |index: usize| if index.is_multiple_of(2) { Compression::Gzip } else { Compression::None };
    let digest = ImageDigest::new(format!("sha256:{}", "a".repeat(64))).unwrap();
    let described = |index| ImageLayer { digest: digest.clone(), compression: compression(index) };
    let files = ImageFiles { layers: (0..layers.len()).map(described).collect(), ..files };
    add(IMAGE_FILE, &serde_json::to_vec(&files).unwrap());
    for (index, entries) in layers.iter().enumerate() {
        let content = layer(entries);
        let content = match compression(index) {
            Compression::None => content,
            Compression::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
                std::io::Write::write_all(&mut encoder, &content).unwrap();
                encoder.finish().unwrap()
            }
        };
        add(&layer_file(index), &content);
    }
    archive.into_inner().unwrap()
}

fn unpacked(layers: &[Entries<'_>]) -> (tempfile::TempDir, Result<ImageFiles, Error>) {
    let parent = tempfile::tempdir().unwrap();
    fs::create_dir(parent.path().join("root")).unwrap();
    let content = bundle(layers, ImageFiles::default());
    let result = unpack(content.as_slice(), &parent.path().join("root"), Limits::default());
    (parent, result)
}

fn read(parent: &tempfile::TempDir, path: &str) -> Option<String> {
    fs::read_to_string(parent.path().join("root").join(path)).ok()
}

#[test]
fn later_layers_lie_over_earlier_ones_and_marks_take_away() {
    let (parent, result) = unpacked(&[
        &[
            ("./", Kind::Directory, ""),
            ("usr/lib/", Kind::Directory, ""),
            ("lib", Kind::Symlink, "usr/lib"),
            ("bin/busybox", Kind::Regular, "tools"),
            ("bin/sh", Kind::Symlink, "/bin/busybox"),
            ("bin/ash", Kind::Link, "bin/busybox"),
            ("deep/er/sh", Kind::Link, "bin/sh"),
            ("etc/old", Kind::Regular, "old"),
            ("etc/kept", Kind::Regular, "kept"),
            ("data/a/old", Kind::Regular, "old"),
            ("data/b", Kind::Regular, "old"),
            ("turned", Kind::Directory, ""),
        ],
        &[
            ("lib/late.so", Kind::Regular, "behind a link"),
            ("etc/.wh.old", Kind::Regular, ""),
            ("etc/.wh.never", Kind::Regular, ""),
            ("data/a/new", Kind::Regular, "new"),
            ("data/.wh..wh..opq", Kind::Regular, ""),
            ("bin/busybox", Kind::Regular, "newer tools"),
            ("turned", Kind::Regular, "a file"),
        ],
    ]);
    result.unwrap();
    for (path, expected) in [
        ("usr/lib/late.so", Some("behind a link")),
        ("bin/sh", Some("newer tools")),
        ("deep/er/sh", Some("newer tools")),
        ("bin/ash", Some("tools")),
        ("etc/old", None),
        ("etc/kept", Some("kept")),
        ("data/a/new", Some("new")),
        ("data/a/old", None),
        ("data/b", None),
        ("turned", Some("a file")),
    ] {
        assert_eq!(read(&parent, path).as_deref(), expected, "{path}");
    }
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(parent.path().join("root/bin/busybox")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755, "no special bits");
}

#[test]
fn links_mean_what_they_would_if_the_image_were_all_there_is() {
    let (parent, result) = unpacked(&[&[
        ("secret", Kind::Regular, "of the image"),
        ("a/b/up", Kind::Symlink, "../../../../../secret"),
        ("a/b/absolute", Kind::Symlink, "/secret"),
        ("root", Kind::Symlink, "/"),
        ("a/b/round", Kind::Symlink, "../../root/root/secret"),
        ("nowhere", Kind::Symlink, "/etc/passwd"),
        ("moved", Kind::Link, "a/b/up"),
    ]]);
    result.unwrap();
    for path in ["a/b/up", "a/b/absolute", "a/b/round", "root/secret", "moved"] {
        assert_eq!(read(&parent, path).as_deref(), Some("of the image"), "{path}");
    }
    assert_eq!(read(&parent, "nowhere"), None);
}

#[test]
fn what_could_leave_the_image_is_refused_and_writes_nothing_outside() {
    let cases: &[&[Entries<'_>]] = &[
        &[&[("../evil", Kind::Regular, "x")]],
        &[&[("a/../../evil", Kind::Regular, "x")]],
        &[&[("a/../evil", Kind::Regular, "x")]],
        &[&[("hard", Kind::Link, "../../etc/passwd")]],
        &[&[("hard", Kind::Link, "/etc/passwd")]],
        &[&[("dev", Kind::Char, "")]],
        &[&[("dev", Kind::Block, "")]],
        &[&[("pipe", Kind::Fifo, "")]],
        &[&[("d", Kind::Symlink, "/nowhere"), ("d/x", Kind::Regular, "x")]],
        &[&[("l", Kind::Symlink, "l"), ("l/x", Kind::Regular, "x")]],
        &[&[("a/.wh...", Kind::Regular, "")]],
        &[&[("a/.wh.", Kind::Regular, "")]],
        &[&[("a", Kind::Symlink, "")]],
    ];
    for case in cases {
        let (parent, result) = unpacked(case);
        assert!(result.is_err(), "{case:?}");
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1, "{case:?} wrote outside");
    }
    // Written, and inside: what leads out leads to the root instead.
    let (parent, result) = unpacked(&[
        &[("d", Kind::Symlink, "../.."), ("d/x", Kind::Regular, "x")],
        &[("d/y", Kind::Regular, "y")],
    ]);
    result.unwrap();
    assert_eq!((read(&parent, "x"), read(&parent, "y")), (Some("x".to_owned()), Some("y".to_owned())));
    // An absolute name is one of the image.
    let (parent, result) = unpacked(&[&[("/tmp/terrane-evil-image", Kind::Regular, "x")]]);
    result.unwrap();
    assert!(read(&parent, "tmp/terrane-evil-image").is_some());
    assert!(!Path::new("/tmp/terrane-evil-image").exists());
}

#[test]
fn too_many_files_and_too_many_bytes_are_refused() {
    let many: Vec<(String, Kind, &str)> =
        (0..20).map(|number| (format!("f{number}"), Kind::Regular, "0123456789")).collect();
    let many: Vec<(&str, Kind, &str)> =
        many.iter().map(|(path, kind, text)| (path.as_str(), *kind, *text)).collect();
    for (limits, words) in [
        (Limits { entries: 10, bytes: 1000 }, "more than 10 files and directories"),
        (Limits { entries: 100, bytes: 100 }, "more than 100 bytes"),
    ] {
        let root = tempfile::tempdir().unwrap();
        let content = bundle(&[&many], ImageFiles::default());
        let told = unpack(content.as_slice(), root.path(), limits).unwrap_err().to_string();
        assert!(told.contains(words), "{told}");
    }
}

#[test]
fn a_damaged_bundle_is_told() {
    let whole = bundle(&[&[("a", Kind::Regular, "x")]], ImageFiles::default());
    for content in [&[][..], &whole[..600], &whole[..whole.len() - 1600]] {
        let root = tempfile::tempdir().unwrap();
        assert!(unpack(content, root.path(), Limits::default()).is_err());
    }
}

#[test]
fn what_an_image_says_of_itself_is_meant_below_it() {
    let root = tempfile::tempdir().unwrap();
    let files = ImageFiles {
        working_directory: "/app".to_owned(),
        environment: [
            "PATH=/opt/bin:/none:relative",
            "CACHE=/cache",
            "REGION=north",
            "HOME=/",
            "broken",
            "=x",
        ]
        .map(str::to_owned)
        .into(),
        ..ImageFiles::default()
    };
    let entries: Entries<'_> = &[
        ("app/deploy", Kind::Regular, "x"),
        ("opt/bin/aws", Kind::Regular, "x"),
        ("cache", Kind::Directory, ""),
        ("destroy", Kind::Regular, "x"),
    ];
    let files = unpack(bundle(&[entries], files).as_slice(), root.path(), Limits::default()).unwrap();
    let image = Unpacked::new(root.path(), files.clone()).unwrap();
    let at = |path: &str| root.path().join(path);
    assert_eq!(image.working_directory, at("app"));
    for (path, expected) in [
        ("deploy", Some(at("app/deploy"))),
        ("destroy", Some(at("destroy"))),
        ("app/deploy", Some(at("app/deploy"))),
        ("/destroy", Some(at("destroy"))),
        ("none", None),
        ("../../../etc/passwd", None),
    ] {
        assert_eq!(image.find(Path::new(path)), expected, "{path}");
    }
    assert_eq!(image.search_path(), [at("opt/bin")]);
    let expected =
        [("CACHE", at("cache").into_os_string()), ("REGION", "north".into()), ("HOME", "/".into())];
    assert_eq!(image.environment(), expected.map(|(name, value)| (OsString::from(name), value)));
    let lost = ImageFiles { working_directory: "/none".to_owned(), ..files };
    assert!(Unpacked::new(root.path(), lost).is_none());
}
