//! The API as a running server: the data directory, the port, the kubeconfig, and every task that runs beneath.
//!
//! One supervisor owns all tasks. When one of them ends by itself the server is over, and says which and why; nothing else in the
//! crate starts a task of its own.

mod connections;
mod files;
mod kubeconfig;
mod listen;
mod secrets;
mod stall;
mod tls;

#[cfg(test)]
mod limits_tests;
#[cfg(test)]
pub(crate) mod tests;

use std::any::Any;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures::future::{BoxFuture, FutureExt};
use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::auth::{Authenticator, Authorizer, Identity, as_identity, authenticating};
use crate::http::PodLogs;
use crate::kinds::Registry;
use crate::lifecycle::catalog::Registered;
use crate::lifecycle::{self, Lifecycle};
use crate::store::{self, Store};
use secrets::Authority;
use tls::{FromFiles, InClear, Tls};

pub use connections::Limits;
pub use listen::{Certificates, DEFAULT_PORT, Error as ListenError, Listen, bind};

/// The database in the data directory; a directory that has it is ours.
const STORE: &str = "store.db";
const KUBECONFIG: &str = "kubeconfig";

/// How to serve.
#[derive(Clone)]
pub struct Options {
    pub data_directory: PathBuf,
    pub listen: Listen,
    /// Where the kubeconfig goes; in the data directory if not said.
    pub kubeconfig: Option<PathBuf>,
    /// Installed at start, and kept up to date.
    pub definitions: Vec<CustomResourceDefinition>,
    /// Where logs of pods come from: whoever runs them.
    pub logs: Option<Arc<dyn PodLogs>>,
    pub limits: Limits,
    pub store: store::Options,
}

impl Options {
    pub fn new(data_directory: impl Into<PathBuf>) -> Self {
        Options {
            data_directory: data_directory.into(),
            listen: Listen::default(),
            kubeconfig: None,
            definitions: Vec::new(),
            logs: None,
            limits: Limits::default(),
            store: store::Options::default(),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("data_directory", &self.data_directory)
            .field("listen", &self.listen)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Files(#[from] files::Error),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Secrets(#[from] secrets::Error),
    #[error(transparent)]
    Tls(#[from] tls::Error),
    #[error(transparent)]
    Listen(#[from] listen::Error),
    #[error(transparent)]
    Kubeconfig(#[from] kubeconfig::Error),
    #[error("the API cannot be set up: {0}")]
    Install(#[source] lifecycle::Error),
    #[error("the {part} of the API ended: {why}")]
    Ended { part: &'static str, why: String },
}

/// A running API. Dropping it ends everything at once; [`Server::stop`] does so in order.
pub struct Server {
    tasks: Tasks,
    stop: CancellationToken,
    store: Store,
    router: Router,
    authorizer: Arc<Authorizer>,
    authenticator: Arc<Authenticator>,
    address: SocketAddr,
    kubeconfig: PathBuf,
    authority_pem: String,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Server {
    /// Opens the data directory, listens, installs what a cluster has from the start and writes the kubeconfig. When it returns, the
    /// API is ready.
    pub async fn start(options: Options) -> Result<Self, Error> {
        let now = Timestamp::now();
        let directory = options.data_directory.clone();
        files::private_directory(&directory, STORE)?;
        // The store's lock is the directory's: from here on nobody else is in it.
        let store = open_store(directory.join(STORE), with_indexes(&options)).await?;
        let tls =
            Tls::new(Authority::load_or_make(&directory, now)?, options.listen.certificates().cloned(), now)?;
        let administrator = secrets::administrator_token(&directory)?;
        let tokens = Arc::new(secrets::tokens(&directory)?);
        let listener = options.listen.bind().await?;
        let address = listener.local_addr().map_err(|source| listen::Error::Bind {
            address: options.listen.address(),
            source,
            flag: listen::FLAG,
        })?;

        let authorizer = Arc::new(Authorizer::new(store.clone()));
        let authenticator = Arc::new(Authenticator::new(&administrator, tokens, store.clone()));
        let registry = Arc::new(Registry::new());
        let mut api = crate::http::Options::new(Arc::clone(&authorizer));
        api.authenticator = Some(Arc::clone(&authenticator));
        api.logs = options.logs.clone();
        api.max_watches = options.limits.watches;
        let router = crate::http::router_with(store.clone(), Arc::clone(&registry), api);

        let mut server = Server {
            tasks: Tasks::default(),
            stop: CancellationToken::new(),
            store: store.clone(),
            router,
            authorizer,
            authenticator: Arc::clone(&authenticator),
            address,
            kubeconfig: options.kubeconfig.clone().unwrap_or_else(|| directory.join(KUBECONFIG)),
            authority_pem: tls.authority_pem().to_owned(),
        };
        let catalog = Arc::new(Registered::new(registry, store.clone()));
        let lifecycle =
            Lifecycle::new(store, server.client(Identity::system()), catalog, &server.authority_pem);
        for (part, run) in lifecycle.parts() {
            server.tasks.start(part, run.map(|result| result.map_err(|error| error.to_string())));
        }
        tokio::select! {
            installed = lifecycle.install(&options.definitions) => installed.map_err(Error::Install)?,
            ended = server.tasks.ended() => return Err(ended),
        }
        server.accept(listener, tls, authenticator, options.limits);
        let proof = if listen::is_loopback(address.ip()) || address.ip().is_unspecified() {
            kubeconfig::Proof::ByAddress
        } else {
            kubeconfig::Proof::AsLocalhost
        };
        kubeconfig::write(&server.kubeconfig, &server.url(), proof, &server.authority_pem, &administrator)?;
        Ok(server)
    }

    fn accept(&mut self, listener: TcpListener, tls: Tls, authenticator: Arc<Authenticator>, limits: Limits) {
        let tls = Arc::new(tls);
        let router = authenticating(self.router.clone(), authenticator);
        let serve = connections::serve(listener, Arc::clone(&tls), router, limits, self.stop.clone());
        self.tasks.start("listener", serve.map(Ok));
        self.tasks
            .start("certificates", tls.keep_fresh().map(|result| result.map_err(|error| error.to_string())));
    }

    /// Waits until some part of the server ends by itself, which none should.
    pub async fn ended(&mut self) -> Error {
        self.tasks.ended().await
    }

    /// Takes no more connections, lets the open ones finish for a moment, ends all tasks and closes the database.
    pub async fn stop(mut self) {
        self.stop.cancel();
        self.tasks.finish("listener").await;
        self.tasks.end().await;
        let store = self.store;
        // Closing waits for the last write; that must not hold up the runtime. A panic in it was reported where it happened.
        let _ = tokio::task::spawn_blocking(move || store.close()).await;
    }

    /// Forgets how everything came to be as it is now, as age would: a watch from before gets 410.
    pub async fn compact(&self) -> Result<(), store::WriteError> {
        self.store.compact(self.store.snapshot().revision()).await
    }

    /// A client in this process that acts as `identity`: no socket, the same rights as over the port.
    pub fn client(&self, identity: Identity) -> kube::Client {
        kube::Client::new(as_identity(self.router.clone(), identity), "default")
    }

    /// Makes such clients for as long as somebody wants them.
    pub fn clients(&self) -> impl Fn(Identity) -> kube::Client + Send + Sync + 'static {
        let router = self.router.clone();
        move |identity| kube::Client::new(as_identity(router.clone(), identity), "default")
    }

    /// The same as a service, for whoever puts layers of their own around it.
    pub fn router(&self, identity: Identity) -> Router {
        as_identity(self.router.clone(), identity)
    }

    /// What the port serves, without the port: each request carries its own credentials.
    pub fn front(&self) -> Router {
        authenticating(self.router.clone(), Arc::clone(&self.authenticator))
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    pub fn authorizer(&self) -> &Arc<Authorizer> {
        &self.authorizer
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The certificate that clients on this machine are to trust, PEM.
    pub fn authority_pem(&self) -> &str {
        &self.authority_pem
    }

    /// Where clients on this machine reach it.
    pub fn url(&self) -> String {
        let mut address = self.address;
        if address.ip().is_unspecified() {
            let loopback =
                if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
            address.set_ip(loopback);
        }
        format!("https://{address}")
    }
}

/// Serves any router with a certificate from files, until `stop`; then open connections have `farewell` to finish what they are doing.
/// For roles that others reach over the network.
pub async fn serve_with(
    listener: TcpListener,
    certificates: Certificates,
    router: Router,
    stop: CancellationToken,
    farewell: Duration,
) -> Result<(), Error> {
    let tls = Arc::new(FromFiles::read(certificates)?);
    let limits = Limits { farewell, ..Limits::default() };
    let serving = connections::serve(listener, Arc::clone(&tls), router, limits, stop);
    tokio::select! {
        () = serving => {}
        () = tls.keep_fresh() => {}
    }
    Ok(())
}

/// The same in clear: on loopback, or where something in front encrypts. Callers have the same limits.
pub async fn serve_in_clear(
    listener: TcpListener,
    router: Router,
    stop: CancellationToken,
    farewell: Duration,
) {
    let limits = Limits { farewell, ..Limits::default() };
    connections::serve(listener, Arc::new(InClear), router, limits, stop).await;
}

/// Fails if another process has the data directory, and names it. Changes nothing in there.
pub fn ensure_unused(data_directory: &Path) -> Result<(), Error> {
    Ok(Store::ensure_unused(&data_directory.join(STORE))?)
}

/// Whatever a definition lets be selected is found by an index.
fn with_indexes(options: &Options) -> store::Options {
    let mut store = options.store.clone();
    for definition in &options.definitions {
        let spec = &definition.spec;
        let fields = spec
            .versions
            .iter()
            .filter(|version| version.storage)
            .flat_map(|version| &version.selectable_fields);
        for field in fields.flatten() {
            let collection = store::Collection::new(&spec.group, &spec.names.plural);
            store.indexed.add(collection, field.json_path.trim_start_matches('.').to_owned());
        }
    }
    store
}

async fn open_store(path: PathBuf, options: store::Options) -> Result<Store, Error> {
    match tokio::task::spawn_blocking(move || Store::open(&path, options)).await {
        Ok(opened) => Ok(opened?),
        Err(error) => Err(Error::Ended { part: "store", why: error.to_string() }),
    }
}

/// The supervisor: every task of the server, by name.
#[derive(Default)]
struct Tasks(JoinSet<(&'static str, String)>);

impl Tasks {
    fn start(&mut self, part: &'static str, run: impl Future<Output = Result<(), String>> + Send + 'static) {
        let run: BoxFuture<'static, Result<(), String>> = run.boxed();
        self.0.spawn(async move {
            let why = match AssertUnwindSafe(run).catch_unwind().await {
                Ok(Ok(())) => "it had nothing more to do".to_owned(),
                Ok(Err(why)) => why,
                Err(panic) => format!("it panicked: {}", said(&*panic)),
            };
            (part, why)
        });
    }

    async fn ended(&mut self) -> Error {
        match self.0.join_next().await {
            Some(Ok((part, why))) => Error::Ended { part, why },
            Some(Err(error)) => Error::Ended { part: "supervisor", why: error.to_string() },
            None => Error::Ended { part: "supervisor", why: "no task is left".to_owned() },
        }
    }

    /// Waits for the end of one part; those that end before it are of no more interest.
    async fn finish(&mut self, wanted: &str) {
        while let Some(ended) = self.0.join_next().await {
            if ended.is_ok_and(|(part, _)| part == wanted) {
                return;
            }
        }
    }

    async fn end(&mut self) {
        self.0.shutdown().await;
    }
}

fn said(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
