//! What a zip file holds, strictly: the whole list of contents is checked before a byte is written; then either the one regular file
//! with the expected name is, or all of them below one directory. It is read only after its checksum was found right; these limits are
//! the second line.

use std::fs::{File, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sha2::Digest;

use super::Hashed;

/// Releases hold the program, a licence and a few notes.
const ENTRIES: u16 = 64;
const DIRECTORY_LIMIT: u32 = 64 * 1024;
/// The largest program, unpacked.
pub(super) const PROGRAM_LIMIT: u64 = 1024 * 1024 * 1024;
/// Programs shrink to a third or a quarter; what shrinks a hundredfold is no program.
const RATIO_LIMIT: u64 = 50;
/// Small files may shrink as they like.
const RATIO_FROM: u64 = 1024 * 1024;

const END: [u8; 4] = [0x50, 0x4b, 5, 6];
const END_SIZE: u64 = 22;
const COMMENT_LIMIT: u64 = 65_535;
const LISTED: [u8; 4] = [0x50, 0x4b, 1, 2];
const LOCAL: [u8; 4] = [0x50, 0x4b, 3, 4];

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the archive cannot be read: {0}")]
    Malformed(&'static str),
    #[error("the archive holds {name:?}, which is refused: {why}")]
    Refused { name: String, why: &'static str },
    #[error("the archive does not hold {0:?}")]
    Missing(String),
    #[error("the archive could not be unpacked: {0}")]
    Io(#[from] std::io::Error),
}

/// What the list of contents says about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    name: String,
    method: u16,
    crc: u32,
    packed: u64,
    size: u64,
    at: u64,
    is_executable: bool,
}

/// Writes the file `name` of the archive to `out`; returns its size.
pub fn unpack(archive: &mut File, name: &str, out: &mut impl Write) -> Result<u64, Error> {
    let (entries, end_of_data) = list(archive)?;
    let mut found = entries.into_iter().filter(|entry| entry.name == name);
    let entry = found.next().ok_or_else(|| Error::Missing(name.to_owned()))?;
    if found.next().is_some() {
        return Err(Error::Refused { name: name.to_owned(), why: "it is there twice" });
    }
    write(archive, &entry, end_of_data, out)
}

/// A file that was unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    pub name: String,
    /// In lower case hexadecimal digits.
    pub sha256: String,
    pub size: u64,
}

/// Writes all files of the archive below `directory`, which is empty. Others can read them, and execute those that the archive
/// marks so. O(entries), which are limited.
pub fn unpack_all(archive: &mut File, directory: &Path) -> Result<Vec<Unpacked>, Error> {
    let (entries, end_of_data) = list(archive)?;
    let whole: u64 = entries.iter().map(|entry| entry.size).sum();
    if whole > PROGRAM_LIMIT {
        return Err(Error::Malformed("it unpacks to more than a program"));
    }
    let mut unpacked = Vec::new();
    for entry in entries {
        let place = directory.join(&entry.name);
        if entry.name.ends_with('/') {
            open_directories(directory, &place)?;
            continue;
        }
        open_directories(directory, place.parent().unwrap_or(directory))?;
        let file = match File::create_new(&place) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(Error::Refused { name: entry.name, why: "it is there twice" });
            }
            other => other?,
        };
        let mut out = Hashed { file, hasher: sha2::Sha256::new() };
        let size = write(archive, &entry, end_of_data, &mut out)?;
        // The tools execute no other file of a package.
        let is_program = entry.is_executable || entry.name.starts_with("terraform-provider-");
        let mode = if is_program { 0o755 } else { 0o644 };
        out.file.set_permissions(Permissions::from_mode(mode))?;
        out.file.sync_all()?;
        unpacked.push(Unpacked { name: entry.name, sha256: hex::encode(out.hasher.finalize()), size });
    }
    Ok(unpacked)
}

/// Makes what is missing from `top` down to `directory`, readable by everybody.
fn open_directories(top: &Path, directory: &Path) -> std::io::Result<()> {
    if directory == top || directory.is_dir() {
        return Ok(());
    }
    open_directories(top, directory.parent().unwrap_or(top))?;
    std::fs::create_dir(directory)?;
    std::fs::set_permissions(directory, Permissions::from_mode(0o755))
}

fn write(archive: &mut File, entry: &Entry, end_of_data: u64, out: &mut impl Write) -> Result<u64, Error> {
    let name = entry.name.as_str();
    let refused = |why| Error::Refused { name: name.to_owned(), why };
    if entry.size > PROGRAM_LIMIT {
        return Err(refused("it is larger than a program"));
    }
    if entry.size > RATIO_FROM && entry.size / RATIO_LIMIT > entry.packed {
        return Err(refused("it unpacks to far more than a program would"));
    }
    archive.seek(SeekFrom::Start(entry.at))?;
    let mut local = [0u8; 30];
    archive.read_exact(&mut local)?;
    let mut fields = Fields(&local);
    if fields.array()? != LOCAL {
        return Err(Error::Malformed("a file is not where the list says"));
    }
    fields.skip(22)?;
    let (name_length, extra_length) = (fields.u16()?, fields.u16()?);
    let mut local_name = vec![0; usize::from(name_length)];
    archive.read_exact(&mut local_name)?;
    if local_name != name.as_bytes() {
        return Err(Error::Malformed("a file has another name than the list says"));
    }
    let start = entry.at + 30 + u64::from(name_length) + u64::from(extra_length);
    if start.saturating_add(entry.packed) > end_of_data {
        return Err(Error::Malformed("a file reaches beyond the archive"));
    }
    archive.seek(SeekFrom::Start(start))?;
    let packed = archive.take(entry.packed);
    let (size, crc) = match entry.method {
        0 => copy(packed, entry.size, out)?,
        8 => copy(flate2::read::DeflateDecoder::new(packed), entry.size, out)?,
        _ => return Err(refused("it is packed in a way that is not accepted")),
    };
    if size != entry.size || crc != entry.crc {
        return Err(refused("it is damaged"));
    }
    Ok(size)
}

/// Copies one byte more than announced at most, so that too much is noticed.
fn copy(from: impl Read, announced: u64, out: &mut impl Write) -> Result<(u64, u32), Error> {
    let mut from = from.take(announced + 1);
    let mut buffer = vec![0; 128 * 1024];
    let mut crc = flate2::Crc::new();
    let mut size = 0u64;
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return Ok((size, crc.sum())),
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        let piece = buffer.get(..count).unwrap_or_default();
        crc.update(piece);
        out.write_all(piece)?;
        size += u64::try_from(count).unwrap_or_default();
    }
}

/// The whole list of contents, checked, and where the files before it end. O(entries), which are limited.
fn list(archive: &mut File) -> Result<(Vec<Entry>, u64), Error> {
    let length = archive.seek(SeekFrom::End(0))?;
    let tail_length = length.min(END_SIZE + COMMENT_LIMIT);
    archive.seek(SeekFrom::Start(length - tail_length))?;
    let mut tail = Vec::new();
    Read::by_ref(archive).take(tail_length).read_to_end(&mut tail)?;
    // The end record is the last thing but its comment, whose length it knows itself.
    let end = (0..tail.len().saturating_sub(21)).rev().find_map(|at| {
        let record = tail.get(at..)?;
        let mut fields = Fields(record);
        (fields.array().ok()? == END).then_some(())?;
        let comment = record.len().checked_sub(22)?;
        fields.skip(16).ok()?;
        (usize::from(fields.u16().ok()?) == comment).then_some(record)
    });
    let mut end = Fields(end.ok_or(Error::Malformed("it is no zip file"))?);
    end.skip(4)?;
    let disks = (end.u16()?, end.u16()?);
    let (here, count) = (end.u16()?, end.u16()?);
    let (size, at) = (end.u32()?, end.u32()?);
    if disks != (0, 0) || here != count || count > ENTRIES || size > DIRECTORY_LIMIT {
        return Err(Error::Malformed("its list of contents is not that of a release"));
    }
    let at = u64::from(at);
    if at + u64::from(size) > length {
        return Err(Error::Malformed("its list of contents is not inside"));
    }
    archive.seek(SeekFrom::Start(at))?;
    let mut directory = vec![0; usize::try_from(size).unwrap_or_default()];
    archive.read_exact(&mut directory)?;
    let mut fields = Fields(&directory);
    let entries = (0..count).map(|_| fields.entry()).collect::<Result<_, _>>()?;
    Ok((entries, at))
}

/// Little-endian fields from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (front, rest) = self.0.split_at_checked(count).ok_or(Error::Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(front)
    }

    fn skip(&mut self, count: usize) -> Result<(), Error> {
        self.take(count).map(drop)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.take(N)?.try_into().map_err(|_| Error::Malformed("it ends too early"))
    }

    fn u16(&mut self) -> Result<u16, Error> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    fn entry(&mut self) -> Result<Entry, Error> {
        if self.array()? != LISTED {
            return Err(Error::Malformed("its list of contents is damaged"));
        }
        let [_, made_by] = self.array()?;
        self.skip(2)?;
        let (flags, method) = (self.u16()?, self.u16()?);
        self.skip(4)?;
        let (crc, packed, size) = (self.u32()?, self.u32()?, self.u32()?);
        let (name_length, extra_length, comment_length) = (self.u16()?, self.u16()?, self.u16()?);
        self.skip(4)?;
        let (attributes, at) = (self.u32()?, self.u32()?);
        let name = self.take(usize::from(name_length))?;
        self.skip(usize::from(extra_length) + usize::from(comment_length))?;
        let name = std::str::from_utf8(name).map_err(|_| Error::Malformed("a name is no text"))?.to_owned();
        let refused = |why| Error::Refused { name: name.clone(), why };
        check_name(&name).map_err(refused)?;
        /// The system whose file types the attributes hold.
        const UNIX: u8 = 3;
        let kind = (attributes >> 16) & 0o170_000;
        let is_directory = name.ends_with('/');
        match (made_by, kind, is_directory) {
            (UNIX, 0o100_000 | 0, false) | (UNIX, 0o040_000 | 0, true) => {}
            (UNIX, _, _) => return Err(refused("it is neither a regular file nor a directory")),
            (_, _, _) => {}
        }
        if flags & 1 != 0 {
            return Err(refused("it is encrypted"));
        }
        if [packed, size, at].contains(&u32::MAX) {
            return Err(refused("it is larger than a program"));
        }
        // Archives of other systems do not say.
        let is_executable = made_by != UNIX || (attributes >> 16) & 0o111 != 0;
        Ok(Entry {
            method,
            crc,
            packed: packed.into(),
            size: size.into(),
            at: at.into(),
            is_executable,
            name,
        })
    }
}

fn check_name(name: &str) -> Result<(), &'static str> {
    let leads_out = name.starts_with('/')
        || name.contains(['\\', '\0'])
        || name.trim_end_matches('/').split('/').any(|part| matches!(part, "" | "." | ".."));
    if leads_out { Err("its name leads out of the archive") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct Member<'a> {
        name: &'a str,
        content: &'a [u8],
        mode: u32,
        deflate: bool,
    }

    fn member<'a>(name: &'a str, content: &'a [u8]) -> Member<'a> {
        Member { name, content, mode: 0o100_755, deflate: true }
    }

    fn zip(members: &[Member<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut directory = Vec::new();
        for member in members {
            let mut crc = flate2::Crc::new();
            crc.update(member.content);
            let (method, data) = if member.deflate {
                let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(member.content).unwrap();
                (8u16, encoder.finish().unwrap())
            } else {
                (0, member.content.to_vec())
            };
            let at = u32::try_from(bytes.len()).unwrap();
            let mut common = vec![20, 0, 0, 0];
            common.extend(method.to_le_bytes());
            common.extend([0; 4]);
            common.extend(crc.sum().to_le_bytes());
            common.extend(u32::try_from(data.len()).unwrap().to_le_bytes());
            common.extend(u32::try_from(member.content.len()).unwrap().to_le_bytes());
            common.extend(u16::try_from(member.name.len()).unwrap().to_le_bytes());
            common.extend([0; 2]);
            bytes.extend(LOCAL);
            bytes.extend(&common);
            bytes.extend(member.name.as_bytes());
            bytes.extend(data);
            directory.extend(LISTED);
            directory.extend([20, 3]);
            directory.extend(&common);
            directory.extend([0; 6]);
            directory.extend((member.mode << 16).to_le_bytes());
            directory.extend(at.to_le_bytes());
            directory.extend(member.name.as_bytes());
        }
        let at = u32::try_from(bytes.len()).unwrap();
        let count = u16::try_from(members.len()).unwrap().to_le_bytes();
        bytes.extend(&directory);
        bytes.extend(END);
        bytes.extend([0; 4]);
        bytes.extend([count, count].concat());
        bytes.extend(u32::try_from(directory.len()).unwrap().to_le_bytes());
        bytes.extend(at.to_le_bytes());
        bytes.extend([0; 2]);
        bytes
    }

    fn unpacked(bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        let mut out = Vec::new();
        unpack(&mut file, "terraform", &mut out).map(|_| out).map_err(|error| error.to_string())
    }

    #[test]
    fn the_program_comes_out_whole_and_nothing_else() {
        let program: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
        let stored = Member { deflate: false, ..member("terraform", &program) };
        for members in [vec![member("LICENSE.txt", b"x"), member("terraform", &program)], vec![stored]] {
            assert_eq!(unpacked(&zip(&members)).unwrap(), program);
        }
    }

    #[test]
    fn anything_strange_refuses_the_whole_archive() {
        let good = || member("terraform", b"program");
        let nul = vec![0; 4_000_000];
        let table = [
            (vec![good(), member("../terraform", b"x")], "leads out"),
            (vec![good(), member("/etc/passwd", b"x")], "leads out"),
            (vec![good(), member("a/../../b", b"x")], "leads out"),
            (vec![good(), member("a\\b", b"x")], "leads out"),
            (vec![good(), Member { mode: 0o120_777, ..member("link", b"/etc") }], "neither a regular file"),
            (vec![Member { mode: 0o120_777, ..member("terraform", b"/bin/sh") }], "neither a regular file"),
            (vec![Member { mode: 0o010_644, ..member("terraform", b"") }], "neither a regular file"),
            (vec![good(), good()], "twice"),
            (vec![member("tofu", b"x")], "does not hold \"terraform\""),
            (vec![member("terraform", &nul)], "far more than a program"),
        ];
        for (members, why) in table {
            let error = unpacked(&zip(&members)).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let many: Vec<String> = (0..65).map(|number| format!("f{number}")).collect();
        let many: Vec<Member<'_>> = many.iter().map(|name| member(name, b"")).collect();
        assert!(unpacked(&zip(&many)).unwrap_err().contains("not that of a release"));
    }

    /// Never a panic, and never another content: each byte of the archive is broken in turn, and each prefix is tried.
    #[test]
    fn damage_is_noticed_wherever_it_is() {
        let bytes = zip(&[member("LICENSE", b"text"), member("terraform", b"the program")]);
        for at in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 0x41;
            if let Ok(content) = unpacked(&broken) {
                assert_eq!(content, b"the program", "byte {at}");
            }
            assert!(unpacked(&bytes[..at]).is_err(), "cut at {at}");
        }
    }
}
