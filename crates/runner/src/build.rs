//! A build: the files of a commit become an image of a registry, by one of two builders. The account that the pod was given to log in with is
//! told to the registry alone.

mod kaniko;
mod own;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use api::attempt::{BuildOrder, Reason};
use api::image::ImageBuilder;
use secrecy::SecretString;
use sources::Addresses;
use sources::oci::{ImageOptions, Images, Logins, Pushed, RegistryRewrite};
use zeroize::Zeroizing;

use self::kaniko::Kaniko;
use crate::attempt::Work;
use crate::ending::{Ending, Step, disk};

/// More than any docker configuration holds.
const LOGIN_LIMIT: u64 = 1024 * 1024;

/// Who makes the image. Each finds out whether it is there already: the same inputs are built once.
enum Builder {
    /// The files are a layer over a base; nothing of them is executed.
    Own,
    /// What a Dockerfile says is done.
    Kaniko(Kaniko),
}

/// What a builder works with.
struct Site<'a> {
    order: &'a BuildOrder,
    images: &'a Images,
    logins: &'a Logins,
}

impl Builder {
    fn of(work: &Work<'_>, builder: ImageBuilder) -> Step<Self> {
        match (builder, work.kaniko) {
            (ImageBuilder::Runner, _) => Ok(Self::Own),
            (ImageBuilder::Kaniko, Some(executor)) => Ok(Self::Kaniko(Kaniko::new(executor))),
            (ImageBuilder::Kaniko, None) => Err(Ending::bad_input(
                "this runner's image has no kaniko; name one that has by --builder-image",
            )),
        }
    }

    /// Each apart: whoever may build has no room on its stack for what both take.
    async fn build(&self, work: &Work<'_>, site: &Site<'_>) -> Step<Pushed> {
        match self {
            Self::Own => Box::pin(own::build(work, site)).await,
            Self::Kaniko(kaniko) => Box::pin(kaniko.build(work, site)).await,
        }
    }
}

impl Work<'_> {
    pub(crate) async fn build(&self) -> Step<Ending> {
        let order = self.description.build.as_ref();
        let order =
            order.ok_or_else(|| Ending::bad_input("a build was asked for without an image to build"))?;
        let builder = Builder::of(self, order.image.builder)?;
        let logins = self.logins(order)?;
        let images = Images::new(options(order, &self.places.private)?).map_err(|error| failed(&error))?;
        let site = Site { order, images: &images, logins: &logins };
        let (image, words) = match builder.build(self, &site).await? {
            Pushed::Now(digest) => {
                let image = order.image.pinned(digest);
                (image.clone(), format!("Built and pushed {image}."))
            }
            Pushed::Before(digest) => {
                let image = order.image.pinned(digest);
                (image.clone(), format!("{image} is there already; nothing was pushed."))
            }
        };
        Ok(Ending { exit_code: 0, image: Some(Box::new(image)), ..Ending::failed(Reason::Succeeded, words) })
    }

    /// How to log in, as the pod was given it.
    fn logins(&self, order: &BuildOrder) -> Step<Logins> {
        let unusable = |why: String| {
            let what = order.login.as_deref().unwrap_or("the Secret of the registry");
            Ending::bad_input(format!("{what} cannot be used to log in to {}: {why}", order.image.host))
        };
        match mounted(self.mounted, order.login.is_some()).map_err(disk)? {
            Mounted::Nothing if order.login.is_some() => {
                let what = match order.image.builder {
                    ImageBuilder::Runner => "it is not there",
                    // Of what is there no more is given to such a pod.
                    ImageBuilder::Kaniko => "it is not there, or has no Docker configuration",
                };
                Err(unusable(format!("{what}; make it, and the build is tried again")))
            }
            Mounted::Nothing => Ok(Logins::default()),
            Mounted::Read(logins) => logins.map_err(|why| unusable(why.to_string())),
        }
    }
}

/// The accounts' secrets, which no line of a log may show: a Dockerfile can print what it finds.
pub(crate) fn secrets(order: &BuildOrder, directories: &[PathBuf]) -> Vec<SecretString> {
    match mounted(directories, order.login.is_some()) {
        Ok(Mounted::Read(Ok(logins))) => logins.secrets(),
        // The build itself says what is wrong.
        Ok(Mounted::Read(Err(_)) | Mounted::Nothing) | Err(_) => Vec::new(),
    }
}

enum Mounted {
    Nothing,
    Read(Result<Logins, sources::oci::InvalidLogins>),
}

fn mounted(directories: &[PathBuf], is_named: bool) -> std::io::Result<Mounted> {
    let found = match directories.first() {
        Some(directory) => read(directory)?,
        None => BTreeMap::new(),
    };
    Ok(match (found.len(), is_named) {
        (0, _) => Mounted::Nothing,
        // The one key that the layer names, whatever it is called.
        (1, true) => {
            let content = found.values().next().map_or(&[][..], |content| content.as_slice());
            Mounted::Read(Logins::parse(content))
        }
        (_, _) => {
            let plain = found.iter().map(|(name, content)| (name.clone(), content.to_vec())).collect();
            Mounted::Read(Logins::from_secret(&plain))
        }
    })
}

/// The keys of a mounted Secret; the kubelet's own links beside them begin with two dots.
fn read(directory: &Path) -> std::io::Result<BTreeMap<String, Zeroizing<Vec<u8>>>> {
    use std::io::Read;
    let mut found = BTreeMap::new();
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("..") || !entry.path().is_file() {
            continue;
        }
        let mut content = Zeroizing::new(Vec::new());
        std::fs::File::open(entry.path())?.take(LOGIN_LIMIT + 1).read_to_end(&mut content)?;
        found.insert(name, content);
    }
    Ok(found)
}

fn options(order: &BuildOrder, private: &Path) -> Step<ImageOptions> {
    let parse =
        |text: &String| text.parse::<RegistryRewrite>().map_err(|error| Ending::bad_input(error.to_string()));
    let rewrites = order.registries.rewrites.iter().map(parse).collect::<Step<Vec<_>>>()?;
    let addresses = match (order.registries.own_too, order.registries.private_denied) {
        (true, _) => Addresses::OwnToo,
        (false, true) => Addresses::NotPrivate,
        (false, false) => Addresses::default(),
    };
    Ok(ImageOptions { rewrites, addresses, ..ImageOptions::new(private.join("image")) })
}

fn failed(error: &sources::oci::Error) -> Ending {
    Ending::failed(Reason::BuildFailed, error.to_string())
}

/// The end of a build that somebody stopped.
fn stopped() -> Ending {
    Ending::failed(Reason::Interrupted, "the build was stopped")
}
