//! Images of a real registry, and of a stand-in for the faults that a real one does not have on demand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;

use api::image::{Compression, IMAGE_FILE, ImageFiles, ImagePlace, Wanted};
use api::text::{ImageDigest, ImageTag, VersionConstraint};
use axum::Router;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sources::oci::{Error, ImageOptions, Images, Logins};
use sources::{Addresses, Class};
use tempfile::TempDir;
use testkit::registry::{File, Image, Registry};

const PATH: &str = "alustan/infrastructure";

fn file<'a>(path: &'a str, content: &'a str) -> File<'a> {
    File { path, content, mode: 0o644 }
}

fn version(constraint: &str) -> Wanted {
    Wanted::Version(VersionConstraint::new(constraint).unwrap())
}

fn tag(tag: &str) -> Wanted {
    Wanted::Tag(ImageTag::new(tag).unwrap())
}

/// One that works in `/app`.
fn image<'a>(layers: &'a [&'a [File<'a>]]) -> Image<'a> {
    Image { layers, working_directory: "/app", environment: &["REGION=eu"] }
}

/// Images as they are read with a registry of ours behind Docker Hub's name.
struct Reader {
    images: Images,
    place: ImagePlace,
    logins: Logins,
    directory: TempDir,
}

impl Reader {
    fn behind(address: SocketAddr) -> Self {
        Self::with(address, |options| options)
    }

    fn with(address: SocketAddr, change: impl FnOnce(ImageOptions) -> ImageOptions) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = ImageOptions {
            rewrites: vec![format!("docker.io=http://{address}").parse().unwrap()],
            platform: "linux/amd64".to_owned(),
            ..ImageOptions::new(directory.path().to_owned())
        };
        let place = ImagePlace { host: "docker.io".to_owned(), path: PATH.to_owned() };
        Self { images: Images::new(change(options)).unwrap(), place, logins: Logins::default(), directory }
    }

    async fn found(&self, wanted: &Wanted) -> (String, String) {
        let found = self.images.resolve(&self.place, wanted, &self.logins).await.unwrap();
        (found.tag.unwrap().to_string(), found.digest.to_string())
    }

    async fn refused(&self, wanted: &Wanted) -> Error {
        self.images.resolve(&self.place, wanted, &self.logins).await.unwrap_err()
    }

    async fn copied(&self, digest: &str) -> Result<(String, ImageFiles, Vec<String>), Error> {
        let bundle =
            self.images.bundle(&self.place, &ImageDigest::new(digest).unwrap(), &self.logins).await?;
        let mut files = ImageFiles::default();
        let mut names = Vec::new();
        let mut archive = tar::Archive::new(std::fs::File::open(bundle.path()).unwrap());
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            if name == IMAGE_FILE {
                files = serde_json::from_slice(&content).unwrap();
            } else {
                // As they are: packed.
                assert!(content.starts_with(&[0x1f, 0x8b]), "{name}");
                let layer = &files.layers[names.len()];
                let digest = format!("sha256:{}", api::text::Sha256::of(&content));
                assert_eq!((layer.digest.as_str(), layer.compression), (digest.as_str(), Compression::Gzip));
            }
            names.push(name);
            names.retain(|name| name != IMAGE_FILE);
        }
        Ok((bundle.sha256().to_string(), files, names))
    }

    fn left_behind(&self) -> usize {
        std::fs::read_dir(self.directory.path()).unwrap().count()
    }
}

#[tokio::test]
async fn the_newest_version_is_found_pinned_copied_and_missed_when_it_goes() {
    let registry = Registry::start().await.unwrap();
    let reader = Reader::behind(registry.address());
    let gone = reader.refused(&version("~1.0.0")).await;
    assert!(matches!(gone, Error::NotFound { .. }), "{gone}");

    let first = [file("main.tf", "# 1.0.0\n")];
    let base = [file("app/base", "x")];
    let one = registry.push(PATH, "1.0.0", image(&[&base, &first])).await.unwrap();
    for (name, content) in
        [("v1.0.2", "2"), ("1.0.1", "1"), ("1.1.0", "3"), ("1.0.3-rc.1", "4"), ("latest", "5")]
    {
        registry.push(PATH, name, image(&[&[file("main.tf", content)]])).await.unwrap();
    }
    assert_eq!(reader.found(&version("~1.0.0")).await.0, "v1.0.2");
    assert_eq!(reader.found(&version("^1.0")).await.0, "1.1.0");
    assert_eq!(reader.found(&version("1.0.3-rc.1")).await.0, "1.0.3-rc.1");
    assert_eq!(reader.found(&tag("1.0.0")).await, ("1.0.0".to_owned(), one.clone()));
    let none = reader.refused(&version("^2")).await.to_string();
    assert_eq!(
        none,
        "no tag of docker.io/alustan/infrastructure satisfies ^2: the newest version of its 6 tags is 1.1.0; push such a version, or change spec.image.semanticVersion"
    );
    let wrong = reader.refused(&version("newest")).await;
    assert_eq!(wrong.class(), Class::Invalid);
    assert!(wrong.to_string().contains("is not a constraint on versions"), "{wrong}");

    // The same image is the same archive, and its layers are copied in their order.
    let (archive, files, layers) = reader.copied(&one).await.unwrap();
    assert_eq!(layers, ["layers/0", "layers/1"]);
    assert_eq!(
        (files.working_directory.as_str(), files.environment.as_slice()),
        ("/app", ["REGION=eu".to_owned()].as_slice())
    );
    assert_eq!(reader.copied(&one).await.unwrap().0, archive);

    // A tag that is moved is another image.
    let moved = registry.push(PATH, "1.0.0", image(&[&[file("main.tf", "moved")]])).await.unwrap();
    assert_eq!(reader.found(&tag("1.0.0")).await.1, moved);
    assert_ne!(moved, one);

    // A list of images has ours, or says what it has.
    let listed =
        registry.push_index(PATH, "2.0.0", &[(&moved, "linux/arm64"), (&one, "linux/amd64")]).await.unwrap();
    assert_eq!(reader.found(&version("^2")).await, ("2.0.0".to_owned(), listed.clone()));
    assert_eq!(reader.copied(&listed).await.unwrap().0, archive);
    let elsewhere = Reader::with(registry.address(), |options| ImageOptions {
        platform: "linux/s390x".to_owned(),
        ..options
    });
    let error = elsewhere.copied(&listed).await.unwrap_err();
    assert!(
        error.to_string().contains("has nothing for linux/s390x: it is made for linux/amd64, linux/arm64"),
        "{error}"
    );

    // What is too large is not even fetched.
    let small = Reader::with(registry.address(), |options| ImageOptions { bytes: 10, ..options });
    let error = small.copied(&one).await.unwrap_err();
    assert!(
        error.to_string().ends_with(
            "is larger than 10 bytes, which is the limit here; make it smaller, or raise --max-bundle-size"
        ),
        "{error}"
    );

    // What vanishes is told by its name.
    registry.delete(PATH, &moved).await.unwrap();
    let error = reader.refused(&tag("1.0.0")).await;
    assert!(
        error.to_string().starts_with("docker.io/alustan/infrastructure has no tag 1.0.0 any more"),
        "{error}"
    );
    assert!(matches!(reader.copied(&moved).await, Err(Error::NotFound { .. })));
    assert_eq!(reader.left_behind(), 0, "files go with their bundles");
}

#[tokio::test]
async fn a_private_registry_takes_the_account_of_a_docker_configuration_and_nothing_less() {
    let registry = Registry::guarded("jane", "open-sesame", HASH).await.unwrap();
    registry.push(PATH, "1.0.0", Image { layers: &[&[file("a", "b")]], ..Image::default() }).await.unwrap();
    let mut reader = Reader::behind(registry.address());
    let error = reader.refused(&tag("1.0.0")).await;
    assert!(matches!(error, Error::NeedsLogin { .. }), "{error}");
    let logins = |host: &str, password: &str| {
        let config =
            format!(r#"{{"auths": {{"{host}": {{"username": "jane", "password": "{password}"}}}}}}"#);
        let secret = BTreeMap::from([(".dockerconfigjson".to_owned(), config.into_bytes())]);
        Logins::from_secret(&secret).unwrap()
    };
    reader.logins = logins("https://index.docker.io/v1/", "wrong-word");
    let error = reader.refused(&tag("1.0.0")).await;
    assert!(matches!(error, Error::Unauthorised { .. }), "{error}");
    assert!(!format!("{error:?} {error}").contains("wrong-word"));
    // The account of another registry stays at home.
    reader.logins = logins("ghcr.io", "open-sesame");
    assert!(matches!(reader.refused(&tag("1.0.0")).await, Error::NeedsLogin { .. }));
    reader.logins = logins("https://index.docker.io/v1/", "open-sesame");
    let (_, digest) = reader.found(&version("1.x")).await;
    reader.copied(&digest).await.unwrap();
}

/// What `htpasswd -B` would write for jane.
const HASH: &str = "jane:$2b$04$afPQqIP99QwAMDU9XzfO/OXH.MgqrIt66uvMekYCjxsq1s5tISZcK";

/// A stand-in that answers as a broken, rude or hostile registry would; the path of the image says how.
async fn stand_in() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new()
        .route("/v2/{how}/tags/list", get(list))
        .route("/v2/{how}/manifests/{reference}", get(manifest))
        .route("/v2/{how}/blobs/{digest}", get(blob))
        .route("/token", get(token))
        .with_state(address);
    #[expect(clippy::disallowed_methods, reason = "it ends with the test that made it")]
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

type How = axum::extract::Path<String>;
type Pages = Query<BTreeMap<String, String>>;

async fn list(
    State(address): State<SocketAddr>,
    How { 0: how }: How,
    Query(page): Pages,
    headers: HeaderMap,
) -> Response {
    let tags = |tags: &[&str]| axum::Json(serde_json::json!({ "name": how, "tags": tags })).into_response();
    let last = page.get("last").map(String::as_str);
    let linked = |to: &str, found: &[&str]| {
        let mut answer = tags(found);
        answer.headers_mut().insert("link", format!("<{to}>; rel=\"next\"").parse().unwrap());
        answer
    };
    match how.as_str() {
        "paged" if last.is_none() => linked("/v2/paged/tags/list?n=1000&last=1.0.0", &["1.0.0"]),
        "paged" => tags(&["1.0.5"]),
        "endless" => linked("/v2/endless/tags/list?n=1000&last=1.0.0", &["1.0.0"]),
        "elsewhere" => linked("http://127.0.0.1:1/v2/elsewhere/tags/list", &["1.0.0"]),
        "huge" => "x".repeat(5 * 1024 * 1024).into_response(),
        "html" => ([("content-type", "text/html")], "<html>Welcome to the router</html>").into_response(),
        "rude" => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "60")]).into_response(),
        "failing" => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        "closed" => StatusCode::UNAUTHORIZED.into_response(),
        "metadata" => {
            (StatusCode::TEMPORARY_REDIRECT, [("location", "http://169.254.169.254/latest")]).into_response()
        }
        "circle" => (StatusCode::TEMPORARY_REDIRECT, [("location", "/v2/circle/tags/list")]).into_response(),
        "tokens" | "greedy" => {
            if headers.get("authorization").is_some_and(|value| value == "Bearer granted") {
                return tags(&["1.0.0"]);
            }
            let realm = if how == "greedy" {
                "http://169.254.169.254/token".to_owned()
            } else {
                format!("http://{address}/token")
            };
            let challenge =
                format!("Bearer realm=\"{realm}\",service=\"stand-in\",scope=\"repository:tokens:pull\"");
            (StatusCode::UNAUTHORIZED, [("www-authenticate", challenge)]).into_response()
        }
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn token(Query(asked): Pages, headers: HeaderMap) -> Response {
    let is_jane = headers.get("authorization").is_some_and(|value| value == "Basic amFuZTpzM2NyZXQ=");
    let asks = asked.get("service").map(String::as_str) == Some("stand-in") && asked.contains_key("scope");
    if is_jane && asks {
        axum::Json(serde_json::json!({ "access_token": "granted" })).into_response()
    } else {
        StatusCode::UNAUTHORIZED.into_response()
    }
}

const CONFIG: &str = "{}";

fn digest(bytes: &str) -> String {
    format!("sha256:{}", api::text::Sha256::of(bytes.as_bytes()))
}

/// One layer, which is served otherwise than it is described here.
fn described(size: usize, packed: &str) -> String {
    format!(
        r#"{{"schemaVersion": 2, "config": {{"mediaType": "application/vnd.oci.image.config.v1+json", "digest": "{}", "size": 2}},
            "layers": [{{"mediaType": "application/vnd.oci.image.layer.v1.{packed}", "digest": "{}", "size": {size}}}]}}"#,
        digest(CONFIG),
        digest("layer")
    )
}

async fn manifest(axum::extract::Path((how, _)): axum::extract::Path<(String, String)>) -> Response {
    match how.as_str() {
        "paged" | "tokens" => ([("docker-content-digest", digest("any"))], "").into_response(),
        "html" => "<html>Welcome</html>".into_response(),
        "damaged" => described(5, "tar+gzip").into_response(),
        "short" => described(9, "tar+gzip").into_response(),
        "long" => described(2, "tar+gzip").into_response(),
        "zstd" => described(5, "tar+zstd").into_response(),
        "lying" => "{\"schemaVersion\": 2}".into_response(),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn blob(axum::extract::Path((how, asked)): axum::extract::Path<(String, String)>) -> Response {
    match how.as_str() {
        _ if asked == digest(CONFIG) => CONFIG.into_response(),
        "damaged" => "LAYER".into_response(),
        _ => "layer".into_response(),
    }
}

#[tokio::test]
async fn what_a_broken_or_hostile_registry_answers_is_told_and_believed_in_nothing() {
    let mut reader = Reader::behind(stand_in().await);
    let mut at = async |how: &str, wanted: &Wanted, logins: Option<&str>| {
        reader.place.path = how.to_owned();
        reader.logins = logins.map(|text| Logins::parse(text.as_bytes()).unwrap()).unwrap_or_default();
        reader
            .images
            .resolve(&reader.place, wanted, &reader.logins)
            .await
            .map_err(|error| (error.class(), error.to_string()))
    };
    let any = version("*");
    assert_eq!(at("paged", &any, None).await.unwrap().tag.unwrap().as_str(), "1.0.5");
    for (how, class, words) in [
        ("endless", Class::Invalid, "has more than 50000 tags, or its list of tags never ends"),
        ("elsewhere", Class::Invalid, "its list of tags goes on at another host"),
        ("huge", Class::Invalid, "what answers there is no registry: an answer is larger than 4194304 bytes"),
        ("html", Class::Invalid, "what answers there is no registry: its list of tags is no JSON"),
        ("rude", Class::Transient, "asks to be left alone for a while (429, too many requests)"),
        ("failing", Class::Transient, "its registry fails with 500; it is asked again later"),
        ("closed", Class::Invalid, "docker.io/closed needs credentials"),
        ("metadata", Class::Invalid, "has the address 169.254.169.254, which is not a place for a registry"),
        ("circle", Class::Transient, "it redirects too often"),
        ("greedy", Class::Invalid, "has the address 169.254.169.254, which is not a place for a registry"),
        ("tokens", Class::Invalid, "docker.io/tokens needs credentials"),
    ] {
        let (found, told) = at(how, &any, None).await.unwrap_err();
        assert!(told.contains(words) && found == class, "{how}: {found:?} {told}");
    }
    let (_, told) = at("html", &tag("1"), None).await.unwrap_err();
    assert!(told.contains("what answers there is no registry: its manifest cannot be read"), "{told}");
    // A token is asked for with the account of this registry.
    let jane = r#"{"auths": {"docker.io": {"auth": "amFuZTpzM2NyZXQ="}}}"#;
    assert_eq!(at("tokens", &any, Some(jane)).await.unwrap().digest.as_str(), digest("any"));
    let stranger = r#"{"auths": {"docker.io": {"username": "joe", "password": "s3cret"}}}"#;
    let (_, told) = at("tokens", &any, Some(stranger)).await.unwrap_err();
    assert!(told.contains("refuses the credentials") && !told.contains("s3cret"), "{told}");

    reader.logins = Logins::default();
    for (how, content, words) in [
        ("damaged", described(5, "tar+gzip"), "one of its layers is not what its digest says"),
        ("short", described(9, "tar+gzip"), "one of its layers is not what its digest says"),
        ("long", described(2, "tar+gzip"), "one of its layers is not what its digest says"),
        ("zstd", described(5, "tar+zstd"), "packed by zstd"),
        ("lying", "another manifest".to_owned(), "its manifest is not what its digest says"),
    ] {
        reader.place.path = how.to_owned();
        let error = reader.copied(&digest(&content)).await.unwrap_err();
        assert!(error.to_string().contains(words), "{how}: {error}");
    }
    assert_eq!(reader.left_behind(), 0);
}

#[tokio::test]
async fn this_machine_is_no_registry_unless_the_administrator_says_so() {
    let address = stand_in().await;
    let place = ImagePlace { host: address.to_string(), path: "paged".to_owned() };
    let directory = tempfile::tempdir().unwrap();
    let options = ImageOptions::new(directory.path().to_owned());
    let strict = Images::new(options.clone()).unwrap();
    let resolve = async |images: &Images, place: &ImagePlace| {
        images.resolve(place, &version("*"), &Logins::default()).await
    };
    for host in [address.to_string(), format!("localhost:{}", address.port()), "169.254.169.254".to_owned()] {
        let named = ImagePlace { host, ..place.clone() };
        let error = resolve(&strict, &named).await.unwrap_err().to_string();
        assert!(error.contains("which is not a place for a registry"), "{error}");
    }
    let public = ImageOptions { addresses: Addresses::NotPrivate, ..options.clone() };
    let public = Images::new(public).unwrap();
    for host in ["10.0.0.1:5000", "[fd12::1]:5000"] {
        let named = ImagePlace { host: host.to_owned(), ..place.clone() };
        let error = resolve(&public, &named).await.unwrap_err().to_string();
        assert!(error.contains("which is not a place for a registry"), "{error}");
    }
    let own = Images::new(ImageOptions { addresses: Addresses::OwnToo, ..options }).unwrap();
    assert!(resolve(&own, &place).await.is_ok());
}
