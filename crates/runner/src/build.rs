//! A build: the files of a commit become an image of a registry. Nothing of the code is unpacked or executed for that, and the account
//! that the pod was given to log in with is told to the registry alone.

use std::collections::BTreeMap;
use std::path::Path;

use api::attempt::{BuildOrder, Reason};
use sources::Addresses;
use sources::oci::{ImageOptions, Images, Logins, Pushed, RegistryRewrite};
use tofu::process::Wish;
use zeroize::Zeroizing;

use crate::attempt::Work;
use crate::ending::{Ending, Step, disk};

/// More than any docker configuration holds.
const LOGIN_LIMIT: u64 = 1024 * 1024;

impl Work<'_> {
    pub(crate) async fn build(&self) -> Step<Ending> {
        let order = self.description.build.as_ref();
        let order =
            order.ok_or_else(|| Ending::bad_input("a build was asked for without an image to build"))?;
        let logins = self.logins(order)?;
        let bundle = self.fetch_bundle().await?;
        self.log.line(&format!("Building {} of commit {}.", order.image, self.description.revision));
        let images = Images::new(options(order, &self.places.private)?).map_err(|error| failed(&error))?;
        let mut stop = self.surroundings.stop.clone();
        let stopped = async move {
            if stop.wait_for(|wish| *wish == Wish::Stop).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let pushed = tokio::select! {
            pushed = images.build(&order.image, &bundle, &logins) => pushed.map_err(|error| failed(&error))?,
            () = stopped => return Err(Ending::failed(Reason::Interrupted, "the build was stopped")),
        };
        let (image, words) = match pushed {
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
        let found = match self.mounted.first() {
            Some(directory) => read(directory).map_err(disk)?,
            None => BTreeMap::new(),
        };
        match (found.len(), &order.login) {
            (0, Some(_)) => {
                Err(unusable("it is not there; make it, and the build is tried again".to_owned()))
            }
            (0, None) => Ok(Logins::default()),
            // The one key that the layer names, whatever it is called.
            (1, Some(_)) => {
                let content = found.values().next().map_or(&[][..], |content| content.as_slice());
                Logins::parse(content).map_err(|why| unusable(why.to_string()))
            }
            (_, _) => {
                let plain = found.iter().map(|(name, content)| (name.clone(), content.to_vec())).collect();
                Logins::from_secret(&plain).map_err(|why| unusable(why.to_string()))
            }
        }
    }
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
    let addresses = if order.registries.own_too { Addresses::OwnToo } else { Addresses::default() };
    Ok(ImageOptions { rewrites, addresses, ..ImageOptions::new(private.join("image")) })
}

fn failed(error: &sources::oci::Error) -> Ending {
    Ending::failed(Reason::BuildFailed, error.to_string())
}
