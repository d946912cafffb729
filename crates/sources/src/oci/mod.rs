//! OCI images as sources: which image a constraint, a tag or a digest means, and its layers as a bundle for a runner; and images that are
//! made of a commit's files. Layers are copied as they are, and compared with their digests: nothing here unpacks or executes what it reads.

mod build;
pub mod constraint;
mod error;
pub mod login;
pub mod manifest;
mod outside;
mod push;
pub mod registry;

use std::path::PathBuf;
use std::time::Duration;

use api::image::{Compression, IMAGE_FILE, ImageFiles, ImageLayer, ImagePlace, Wanted, layer_file};
use api::text::{ImageDigest, ImageTag, Sha256};
use futures::StreamExt;
use futures::stream::BoxStream;
use reqwest::Method;
use reqwest::header::LINK;
use sha2::Digest;
use tokio::io::AsyncWriteExt;

pub use self::build::Pushed;
pub use self::error::Error;
pub use self::login::{DOCKER_CONFIG_KEYS, InvalidLogins, Logins};
pub use self::outside::Outside;
pub use self::registry::{InvalidRegistryRewrite, RegistryRewrite};

use self::constraint::{Constraint, newest, version_of};
use self::manifest::{ACCEPTED, Blob, Manifest, choose, compression, files};
use self::registry::{ANSWER_LIMIT, Clients, Session, Target, next_page};
use crate::bundle::Bundle;
use crate::remote::Addresses;

/// Tags of one image that are looked through; registries give a thousand at a time.
const TAGS: usize = 50_000;
const PAGES: usize = 500;
const CONFIG_LIMIT: u64 = 1024 * 1024;
/// Indexes in indexes that are followed.
const NESTED: usize = 2;
/// How long one look may take, and one download.
const LOOK_LIMIT: Duration = Duration::from_secs(120);
const BUNDLE_LIMIT: Duration = Duration::from_secs(30 * 60);

#[derive(Debug, Clone)]
pub struct ImageOptions {
    /// Where layers are put while they are copied.
    pub directory: PathBuf,
    pub addresses: Addresses,
    pub rewrites: Vec<RegistryRewrite>,
    /// What the layers of one image may take together, as they are packed.
    pub bytes: u64,
    /// What runners can execute, such as `linux/amd64`.
    pub platform: String,
}

impl ImageOptions {
    /// For runners on machines of this one's kind.
    pub fn new(directory: PathBuf) -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self {
            directory,
            addresses: Addresses::default(),
            rewrites: Vec::new(),
            bytes: crate::Limits::default().bytes,
            platform: format!("linux/{architecture}"),
        }
    }
}

/// What a look at a registry found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundImage {
    pub tag: Option<ImageTag>,
    pub digest: ImageDigest,
}

/// Reads images from registries.
#[derive(Debug, Clone)]
pub struct Images {
    clients: Clients,
    options: ImageOptions,
}

impl Images {
    pub fn new(options: ImageOptions) -> Result<Self, Error> {
        Ok(Self { clients: Clients::new(options.addresses)?, options })
    }

    /// The image that is wanted, as it is now.
    pub async fn resolve(
        &self,
        place: &ImagePlace,
        wanted: &Wanted,
        logins: &Logins,
    ) -> Result<FoundImage, Error> {
        within(LOOK_LIMIT, place, self.look(place, wanted, logins)).await
    }

    /// The layers of an image as an archive for a runner.
    pub async fn bundle(
        &self,
        place: &ImagePlace,
        digest: &ImageDigest,
        logins: &Logins,
    ) -> Result<Bundle, Error> {
        within(BUNDLE_LIMIT, place, self.copy(place, digest, logins)).await
    }

    fn session<'a>(&'a self, place: &ImagePlace, logins: &'a Logins) -> Result<Session<'a>, Error> {
        let target = Target::of(place, &self.options.rewrites, self.options.addresses)?;
        Ok(Session::new(&self.clients, target, place.to_string(), logins.of(place)))
    }

    async fn look(&self, place: &ImagePlace, wanted: &Wanted, logins: &Logins) -> Result<FoundImage, Error> {
        let tag = match wanted {
            Wanted::Digest(digest) => return Ok(FoundImage { tag: None, digest: digest.clone() }),
            Wanted::Tag(tag) => tag.clone(),
            Wanted::Version(constraint) => {
                let constraint: Constraint = constraint.as_str().parse()?;
                let mut session = self.session(place, logins)?;
                let tags = session.tags().await?;
                let chosen = newest(tags.iter().map(String::as_str), &constraint);
                let tag = chosen.and_then(|tag| ImageTag::new(tag).ok());
                tag.ok_or_else(|| Error::NoVersion {
                    image: place.to_string(),
                    wanted: constraint.to_string(),
                    seen: seen(&tags),
                })?
            }
        };
        let mut session = self.session(place, logins)?;
        match session.digest_of(&tag).await {
            Ok(digest) => Ok(FoundImage { tag: Some(tag), digest }),
            Err(Error::NotFound { image }) => Err(Error::NoTag { image, tag: tag.to_string() }),
            Err(error) => Err(error),
        }
    }

    async fn copy(&self, place: &ImagePlace, digest: &ImageDigest, logins: &Logins) -> Result<Bundle, Error> {
        let mut session = self.session(place, logins)?;
        let (config, layers) = session.image(digest, &self.options.platform).await?;
        let limit = self.options.bytes;
        let total = layers.iter().fold(0_u64, |sum, layer| sum.saturating_add(layer.size));
        if total > limit {
            return Err(Error::TooLarge { image: place.to_string(), limit });
        }
        let described = layers.iter().map(|layer| {
            let compression: Compression =
                compression(&layer.media_type).map_err(|why| session.unusable(why))?;
            Ok(ImageLayer { digest: layer.digest.clone(), compression })
        });
        let described = described.collect::<Result<Vec<_>, Error>>()?;
        let content = session.small_blob(&config, CONFIG_LIMIT).await?;
        let files = files(&content, &config.media_type, described).map_err(|why| session.unusable(why))?;
        let mut archive = Archive::new(&self.options.directory).await?;
        archive.describe(&files).await?;
        for (index, layer) in layers.iter().enumerate() {
            session.layer(layer, &layer_file(index), &mut archive).await?;
        }
        archive.finish().await
    }
}

async fn within<T>(
    limit: Duration,
    place: &ImagePlace,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => Err(Error::Timeout { image: place.to_string(), limit }),
    }
}

/// What there is instead of what is wanted.
fn seen(tags: &[String]) -> String {
    let newest = tags
        .iter()
        .filter_map(|tag| Some((version_of(tag)?, tag)))
        .max_by(|(a, _), (b, _)| a.cmp_precedence(b));
    match (tags.len(), newest) {
        (0, _) => "it has no tags".to_owned(),
        (count, None) => format!("none of its {count} tags is a version"),
        (count, Some((_, tag))) => format!("the newest version of its {count} tags is {tag}"),
    }
}

impl Session<'_> {
    /// All tags, page by page.
    async fn tags(&mut self) -> Result<Vec<String>, Error> {
        #[derive(serde::Deserialize)]
        struct List {
            tags: Option<Vec<String>>,
        }
        let endless = || Error::EndlessTags { image: self.image.clone(), limit: TAGS };
        let (endless, first) = (endless(), self.url("tags/list?n=1000")?);
        let (mut tags, mut url) = (Vec::new(), first.clone());
        for _ in 0..PAGES {
            let answer = self.ask(Method::GET, url.clone(), "application/json").await?;
            let next = answer.headers().get(LINK).and_then(|link| next_page(link.to_str().ok()?));
            let content = self.read(answer, ANSWER_LIMIT).await?;
            let list: List = serde_json::from_slice(&content).map_err(|_| Error::NoRegistry {
                image: self.image.clone(),
                detail: "its list of tags is no JSON".to_owned(),
            })?;
            tags.extend(list.tags.unwrap_or_default());
            if tags.len() > TAGS {
                return Err(endless);
            }
            let Some(next) = next else { return Ok(tags) };
            let next = url.join(&next).map_err(|_| self.unusable("its list of tags leads to no URL"))?;
            // The account is for this registry and no other.
            if next.origin() != first.origin() {
                return Err(self.unusable("its list of tags goes on at another host"));
            }
            url = next;
        }
        Err(endless)
    }

    /// What a tag points to. Asked without the manifest itself, which registries count as a pull.
    async fn digest_of(&mut self, tag: &ImageTag) -> Result<ImageDigest, Error> {
        let url = self.url(&format!("manifests/{tag}"))?;
        let answer = self.ask(Method::HEAD, url.clone(), ACCEPTED).await?;
        let said = answer.headers().get("docker-content-digest").and_then(|value| value.to_str().ok());
        if let Some(digest) = said.and_then(|text| ImageDigest::new(text).ok()) {
            return Ok(digest);
        }
        let answer = self.ask(Method::GET, url, ACCEPTED).await?;
        let content = self.read(answer, ANSWER_LIMIT).await?;
        Manifest::parse(&content)
            .map_err(|detail| Error::NoRegistry { image: self.image.clone(), detail })?;
        digest_of(&content).ok_or_else(|| self.unusable("its manifest has no digest"))
    }

    /// The configuration and the layers of an image for our platform.
    async fn image(&mut self, digest: &ImageDigest, platform: &str) -> Result<(Blob, Vec<Blob>), Error> {
        let mut digest = digest.clone();
        for _ in 0..=NESTED {
            let url = self.url(&format!("manifests/{digest}"))?;
            let answer = self.ask(Method::GET, url, ACCEPTED).await?;
            let content = self.read(answer, ANSWER_LIMIT).await?;
            if digest_of(&content).as_ref() != Some(&digest) {
                return Err(Error::Damaged { image: self.image.clone(), what: "its manifest".to_owned() });
            }
            match Manifest::parse(&content).map_err(|why| self.unusable(why))? {
                Manifest::Image { config, layers } => return Ok((config, layers)),
                Manifest::Index(choices) => {
                    let chosen = choose(&choices, platform).map_err(|found| Error::NoPlatform {
                        image: self.image.clone(),
                        platform: platform.to_owned(),
                        found,
                    })?;
                    digest = chosen.digest.clone();
                }
            }
        }
        Err(self.unusable("its index leads to an index, and that to another"))
    }

    async fn small_blob(&mut self, blob: &Blob, limit: u64) -> Result<Vec<u8>, Error> {
        let url = self.url(&format!("blobs/{}", blob.digest))?;
        let answer = self.ask(Method::GET, url, "*/*").await?;
        let content = self.read(answer, limit).await?;
        if digest_of(&content).as_ref() != Some(&blob.digest) {
            return Err(Error::Damaged { image: self.image.clone(), what: "its configuration".to_owned() });
        }
        Ok(content)
    }

    /// Copies a layer as it is. It must have the size and the digest that its manifest says.
    async fn layer(&mut self, layer: &Blob, name: &str, archive: &mut Archive) -> Result<(), Error> {
        let url = self.url(&format!("blobs/{}", layer.digest))?;
        let answer = self.ask(Method::GET, url, "*/*").await?;
        archive.begin(name, layer.size).await?;
        let mut pieces = self.pieces(answer, layer);
        while let Some(piece) = pieces.next().await? {
            archive.write(&piece).await?;
        }
        archive.end(layer.size).await
    }

    /// The bytes of a layer, piece by piece. They must have the size and the digest that its manifest says.
    fn pieces(&self, answer: reqwest::Response, layer: &Blob) -> Pieces<'_> {
        let (rest, layer) = (answer.bytes_stream().boxed(), layer.clone());
        Pieces { session: self, layer, rest, hasher: sha2::Sha256::new(), size: 0 }
    }
}

struct Pieces<'a> {
    session: &'a Session<'a>,
    layer: Blob,
    rest: BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    hasher: sha2::Sha256,
    size: u64,
}

impl Pieces<'_> {
    /// Nothing once all of it came, and was right.
    async fn next(&mut self) -> Result<Option<bytes::Bytes>, Error> {
        let damaged =
            || Error::Damaged { image: self.session.image.clone(), what: "one of its layers".to_owned() };
        let Some(piece) = self.rest.next().await else {
            let found = format!("sha256:{}", hex::encode(self.hasher.clone().finalize()));
            let is_right = self.size == self.layer.size && found == self.layer.digest.as_str();
            return if is_right { Ok(None) } else { Err(damaged()) };
        };
        let piece = piece.map_err(|error| self.session.broken(&error))?;
        self.size = self.size.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        if self.size > self.layer.size {
            return Err(damaged());
        }
        self.hasher.update(&piece);
        Ok(Some(piece))
    }
}

fn digest_of(content: &[u8]) -> Option<ImageDigest> {
    ImageDigest::new(format!("sha256:{}", Sha256::of(content))).ok()
}

/// A tar that is written as its parts arrive. The same image makes the same bytes.
struct Archive {
    file: tempfile::NamedTempFile,
    writer: tokio::io::BufWriter<tokio::fs::File>,
    hasher: sha2::Sha256,
    size: u64,
}

const BLOCK: u64 = 512;

impl Archive {
    async fn new(directory: &std::path::Path) -> Result<Self, Error> {
        let io = Error::io("create a file for the image");
        tokio::fs::create_dir_all(directory).await.map_err(&io)?;
        let file = tempfile::NamedTempFile::new_in(directory).map_err(&io)?;
        let writer = tokio::fs::File::from_std(file.reopen().map_err(&io)?);
        let writer = tokio::io::BufWriter::with_capacity(256 * 1024, writer);
        Ok(Self { file, writer, hasher: sha2::Sha256::new(), size: 0 })
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.hasher.update(bytes);
        self.size = self.size.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        self.writer.write_all(bytes).await.map_err(Error::io("write the image"))
    }

    async fn begin(&mut self, name: &str, size: u64) -> Result<(), Error> {
        let mut header = tar::Header::new_gnu();
        header.set_path(name).map_err(Error::io("write the image"))?;
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(size);
        header.set_cksum();
        self.write(header.as_bytes()).await
    }

    /// Parts of a tar begin at whole blocks.
    async fn end(&mut self, size: u64) -> Result<(), Error> {
        let rest = (BLOCK - size % BLOCK) % BLOCK;
        let zeros = [0_u8; 512];
        let padding = usize::try_from(rest).ok().and_then(|rest| zeros.get(..rest)).unwrap_or_default();
        self.write(padding).await
    }

    async fn describe(&mut self, files: &ImageFiles) -> Result<(), Error> {
        let io = Error::io("write the image");
        let content = serde_json::to_vec(files).map_err(|error| io(error.into()))?;
        let size = u64::try_from(content.len()).unwrap_or(u64::MAX);
        self.begin(IMAGE_FILE, size).await?;
        self.write(&content).await?;
        self.end(size).await
    }

    async fn finish(mut self) -> Result<Bundle, Error> {
        let io = Error::io("write the image");
        self.write(&[0_u8; 1024]).await?;
        self.writer.flush().await.map_err(&io)?;
        let digest = hex::encode(self.hasher.finalize());
        let sha256 = Sha256::new(digest).map_err(|_| io(std::io::Error::other("it has no digest")))?;
        Ok(Bundle::new(self.file, sha256, self.size))
    }
}
