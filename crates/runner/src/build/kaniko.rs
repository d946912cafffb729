//! kaniko's executor as a child of the runner. It unpacks other images over the root of its pod and executes what a Dockerfile says, as root: in a
//! container of its own, and nowhere else. It is told by arguments what is no secret, and by a file of its own how to log in.

use std::ffi::OsString;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use api::attempt::Reason;
use api::image::{BuiltImage, CODE_DIRECTORY};
use api::text::ImageDigest;
use sources::oci::{Outside, Pushed};
use tofu::process::{Surroundings, run};

use super::{Site, failed, stopped};
use crate::attempt::Work;
use crate::ending::{Ending, Step, disk, how, process_failed};
use crate::unpack::unpack;

/// Looked for where the layer names no other.
const DOCKERFILE: &str = "Dockerfile";
/// What programs of an image are found by that says nothing of it, and the executor itself needs none.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(super) struct Kaniko {
    executor: PathBuf,
}

impl Kaniko {
    pub(super) fn new(executor: &Path) -> Self {
        Self { executor: executor.to_owned() }
    }

    /// The tag is made of all inputs, so whatever it points to is this image. Else it is built, and its digest is what kaniko says.
    pub(super) async fn build(&self, work: &Work<'_>, site: &Site<'_>) -> Step<Pushed> {
        let image = &site.order.image;
        work.check_wish()?;
        let known = site.images.known(image, site.logins).await.map_err(|error| failed(&error))?;
        if let Some(digest) = known {
            return Ok(Pushed::Before(digest));
        }
        unpack_code(work).await?;
        let dockerfile = dockerfile(work, image)?;
        let (place, cache) = (image.place(), site.order.cache.as_ref().map(|cache| cache.place()));
        let cache = cache.transpose().map_err(|why| Ending::bad_input(why.to_string()))?;
        let unreachable = |error: sources::oci::Error| failed(&error);
        let outside = site.images.outside(&place, cache.as_ref()).map_err(unreachable)?;
        let config = site.images.docker_config(&outside, &place, cache.as_ref(), site.logins);
        let config = config.map_err(unreachable)?;
        let login = work.places.private.join("docker");
        write_private(&login, "config.json", &config).map_err(disk)?;
        for rewrite in &outside.untold {
            work.log.line(&format!(
                "kaniko cannot be told of the rewrite {rewrite}: what a Dockerfile names there is read where it says."
            ));
        }
        let digest = work.places.private.join("digest");
        work.log.line(&format!(
            "Building {image} of commit {} by kaniko, from {}.",
            work.description.revision, dockerfile.words
        ));
        let arguments = arguments(work, image, &dockerfile.path, &outside, &digest);
        self.execute(work, &arguments, &login).await?;
        let said = std::fs::read_to_string(&digest).unwrap_or_default();
        let said = ImageDigest::new(said.trim()).map_err(|_| {
            Ending::failed(Reason::BuildFailed, "kaniko ended well and did not say which image it made")
        })?;
        Ok(Pushed::Now(said))
    }

    async fn execute(&self, work: &Work<'_>, arguments: &[OsString], login: &Path) -> Step<()> {
        let surroundings =
            Surroundings { environment: environment(work, login), ..work.surroundings.clone() };
        // What it says last is why it failed.
        let mut last = String::new();
        let mut lines = |_, line: &str| {
            work.log.line(line);
            if !line.trim().is_empty() {
                last = work.log.mask().line(line.trim());
            }
        };
        let ended = run(&self.executor, arguments, &work.places.root, &surroundings, &mut lines).await;
        let ended = ended.map_err(|error| process_failed(error.into()))?;
        if ended.interrupted {
            return Err(stopped());
        }
        if ended.code == Some(0) {
            return Ok(());
        }
        let why = if last.is_empty() { "the log says no more".to_owned() } else { last };
        let mut ending =
            Ending::failed(Reason::BuildFailed, format!("kaniko failed ({}): {why}", how(&ended)));
        ending.exit_code = ended.code.unwrap_or(1);
        Err(ending)
    }
}

/// The whole environment: what the pod says is for the runner, and a credential that stood there would be found by helpers of kaniko.
fn environment(work: &Work<'_>, login: &Path) -> Vec<(OsString, OsString)> {
    let mut environment: Vec<(OsString, OsString)> = vec![
        ("PATH".into(), PATH.into()),
        ("HOME".into(), "/root".into()),
        ("USER".into(), "root".into()),
        ("DOCKER_CONFIG".into(), login.into()),
    ];
    let certificates = work.surroundings.environment.iter().filter(|(name, _)| name == "SSL_CERT_FILE");
    environment.extend(certificates.cloned());
    environment
}

fn arguments(
    work: &Work<'_>,
    image: &BuiltImage,
    dockerfile: &Path,
    outside: &Outside,
    digest: &Path,
) -> Vec<OsString> {
    let path = |flag: &str, path: &Path| {
        let mut argument = OsString::from(flag);
        argument.push(path);
        argument
    };
    let mut arguments = vec![
        path("--context=dir://", &work.places.source),
        path("--dockerfile=", dockerfile),
        format!("--destination={}:{}", outside.destination, image.tag).into(),
        path("--digest-file=", digest),
        "--cache=true".into(),
        format!("--cache-repo={}", outside.cache).into(),
        // It asks whether it is in a container, and knows few of those that there are.
        "--force".into(),
        "--log-format=text".into(),
        "--log-timestamp=false".into(),
        "--verbosity=info".into(),
    ];
    arguments.extend(outside.in_clear.iter().map(|host| format!("--insecure-registry={host}").into()));
    arguments.extend(outside.mirrors.iter().map(|mirror| format!("--registry-map={mirror}").into()));
    if !outside.mirrors.is_empty() {
        // A rewrite is instead, not beside.
        arguments.push("--skip-default-registry-fallback".into());
    }
    arguments
}

async fn unpack_code(work: &Work<'_>) -> Step<()> {
    let path = work.fetch_bundle().await?;
    let source = work.places.source.clone();
    let unpacked = tokio::task::spawn_blocking(move || {
        let archive = std::io::BufReader::new(std::fs::File::open(&path)?);
        let result = unpack(archive, &source).map_err(|error| error.to_string());
        std::fs::remove_file(&path)?;
        Ok::<_, std::io::Error>(result)
    });
    let result = unpacked.await.map_err(|stopped| disk(std::io::Error::other(stopped)))?;
    result.map_err(disk)?.map_err(Ending::bad_input)
}

struct Dockerfile {
    path: PathBuf,
    /// As people know it.
    words: String,
}

/// The one that the layer names, else the one that is there, else what our own builder does, as a Dockerfile.
fn dockerfile(work: &Work<'_>, image: &BuiltImage) -> Step<Dockerfile> {
    let source = &work.places.source;
    let within = |path: PathBuf| {
        let root = source.canonicalize().ok()?;
        path.canonicalize().ok().filter(|found| found.starts_with(root) && found.is_file())
    };
    if let Some(named) = &image.dockerfile {
        let path = within(source.join(named.as_str())).ok_or_else(|| {
            Ending::bad_input(format!(
                "{named} is not a file at commit {}; correct the layer's build.dockerfile, or push the missing file",
                work.description.revision.short()
            ))
        })?;
        return Ok(Dockerfile { path, words: named.to_string() });
    }
    if let Some(path) = within(source.join(DOCKERFILE)) {
        return Ok(Dockerfile { path, words: DOCKERFILE.to_owned() });
    }
    let base = image.base.as_ref().map_or("scratch", |base| base.as_str());
    let content = format!("FROM {base}\nWORKDIR {CODE_DIRECTORY}\nCOPY . {CODE_DIRECTORY}\n");
    let path = work.places.private.join(DOCKERFILE);
    std::fs::write(&path, content).map_err(disk)?;
    let words = format!("its files over {base}, because it has no {DOCKERFILE}");
    Ok(Dockerfile { path, words })
}

fn write_private(directory: &Path, name: &str, content: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().mode(0o700).create(directory)?;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(directory.join(name))?.write_all(content)
}
