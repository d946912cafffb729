//! The desk that reads repositories and registries: network and git take seconds, so they happen in a few bounded tasks of their own and never
//! in a reconcile. What they find is kept here, can always be found again, and wakes whoever waits for it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::image::{ImageCredentials, ImagePlace, Wanted};
use api::template::Declared;
use api::text::{CommitId, GitUrl, ImageDigest, RefName, Sha256};
use api::{Repo, Terraform, TerraformLayer, TerraformNotification, TerraformRepository, TerraformRun};
use engine::repository::{Heads, Look};
use engine::{Read, image};
use futures::channel::mpsc;
use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use sources::oci::Images;
use sources::{Git, Interest, Module, Relevance, Source};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use std::sync::Arc;

use crate::credentials;
use crate::feed::Handle;

/// Git processes at the same time. Each may use a core.
const TASKS: usize = 4;
/// Of those, how many may be about one repository: one that is slow, or huge, never keeps the others waiting.
const TASKS_OF_ONE: usize = 2;
/// Questions to registries at the same time. They wait for the network, and never for git.
const REGISTRY_TASKS: usize = 16;
/// Of those, how many may be to one registry for one namespace.
const REGISTRY_TASKS_OF_ONE: usize = 4;
/// How soon something that failed is tried again when it is still wanted.
const TRY_AGAIN: Duration = Duration::from_secs(10);
/// Findings kept; the oldest go first and are found again when needed.
const KEPT: usize = 20_000;
/// Branches of which is kept what matters to their layers.
const BRANCHES: usize = 1_000;

/// A repository, by what git needs to read it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub uid: String,
    pub name: String,
    pub namespace: String,
    pub url: GitUrl,
    /// The Secret that the repository names.
    pub secret: Option<String>,
    /// The key of it that holds an SSH private key, where the repository says so.
    pub ssh_key: Option<String>,
}

impl Place {
    pub(crate) fn of(repository: &TerraformRepository) -> Self {
        let login = repository.spec.repository.credentials.as_ref();
        Self {
            uid: repository.uid().unwrap_or_default(),
            name: repository.name_any(),
            namespace: repository.namespace().unwrap_or_default(),
            url: repository.spec.repository.url.clone(),
            secret: login.map(|login| login.secret_name.to_string()),
            ssh_key: login.and_then(|login| login.ssh_key.as_ref()).map(ToString::to_string),
        }
    }
}

/// A branch of a repository, as its layers name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Branch {
    pub place: Place,
    pub name: RefName,
}

/// Images of one name, by what is needed to read them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImageAt {
    pub namespace: String,
    pub place: ImagePlace,
    /// What the layer names to log in.
    pub credentials: Option<ImageCredentials>,
}

/// Which image a layer follows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Followed {
    pub layer: String,
    pub at: ImageAt,
    pub wanted: Wanted,
}

/// Whose questions wait for each other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Whose {
    Repository(Place),
    Registry { namespace: String, host: String },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Question {
    /// Which commits do the branches point to?
    Heads(Place),
    /// Which commit last mattered to a layer, seen from that head?
    Relevant { branch: Branch, head: CommitId, interest: Interest },
    /// Where are the files of this commit?
    Bundle { place: Place, commit: CommitId },
    /// Which variables does a module declare?
    Declared { place: Place, commit: CommitId, module: Module },
    /// Which image is the one that a layer follows?
    Image(Followed),
    /// Where are the layers of this image?
    ImageBundle { at: ImageAt, digest: ImageDigest },
}

impl Question {
    fn whose(&self) -> Whose {
        match self {
            Self::Heads(place)
            | Self::Relevant { branch: Branch { place, .. }, .. }
            | Self::Bundle { place, .. }
            | Self::Declared { place, .. } => Whose::Repository(place.clone()),
            Self::Image(Followed { at, .. }) | Self::ImageBundle { at, .. } => {
                Whose::Registry { namespace: at.namespace.clone(), host: at.place.host.clone() }
            }
        }
    }

    /// Whether its answer is a look at the world, which only another look replaces.
    fn is_look(&self) -> bool {
        matches!(self, Self::Heads(_) | Self::Image(_))
    }
}

#[derive(Debug, Clone)]
enum Answer {
    Heads(Look),
    Relevant(CommitId),
    Bundle(Sha256),
    Declared(Vec<Declared>),
    Image(image::Look),
    /// In words for the status, and until when nobody asks again.
    Failed {
        why: String,
        until: Timestamp,
    },
}

#[derive(Debug, Clone)]
struct Finding {
    answer: Option<Answer>,
    asked: bool,
    /// The wish of a webhook that the look under way was begun for.
    wish: Option<Timestamp>,
    /// The value of the sync annotation that the look under way was begun for.
    sync: Option<String>,
    waiting: BTreeSet<Waiting>,
    /// How often it was asked, which is how often it was answered but for the time in between.
    asks: u64,
}

/// Who is told when a finding is there, or when it is time to look again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Waiting {
    Repository { namespace: String, name: String },
    Layer { namespace: String, name: String },
    Run { namespace: String, name: String },
    Repo { namespace: String, name: String },
    Terraform { namespace: String, name: String },
    Notification { namespace: String, name: String },
}

impl Waiting {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Repository { .. } => "TerraformRepository",
            Self::Layer { .. } => "TerraformLayer",
            Self::Run { .. } => "TerraformRun",
            Self::Repo { .. } => "Repo",
            Self::Terraform { .. } => "Terraform",
            Self::Notification { .. } => "TerraformNotification",
        }
    }
}

type News<K> = mpsc::UnboundedReceiver<ObjectRef<Handle<K>>>;

/// Who is to look again, by kind.
#[derive(Debug)]
pub(crate) struct AllNews {
    pub(crate) repositories: News<TerraformRepository>,
    pub(crate) layers: News<TerraformLayer>,
    pub(crate) runs: News<TerraformRun>,
    pub(crate) repos: News<Repo>,
    pub(crate) terraforms: News<Terraform>,
    pub(crate) notifications: News<TerraformNotification>,
}

/// Where a desk gets its answers. Why a question has none is said in words for the status.
pub trait Reader: Send + Sync + std::fmt::Debug {
    fn heads<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<Heads, String>>;
    fn relevant<'a>(
        &'a self,
        branch: &'a Branch,
        head: &'a CommitId,
        interest: &'a Interest,
    ) -> BoxFuture<'a, Result<CommitId, String>>;
    /// Puts the files of a commit into the datastore.
    fn bundle<'a>(&'a self, place: &'a Place, commit: &'a CommitId) -> BoxFuture<'a, Result<Sha256, String>>;
    fn declared<'a>(
        &'a self,
        place: &'a Place,
        commit: &'a CommitId,
        module: &'a Module,
    ) -> BoxFuture<'a, Result<Vec<Declared>, String>>;
    /// The image that a layer follows, as it is now.
    fn image<'a>(&'a self, followed: &'a Followed) -> BoxFuture<'a, Result<image::Found, String>>;
    /// Puts the layers of an image into the datastore.
    fn image_bundle<'a>(
        &'a self,
        at: &'a ImageAt,
        digest: &'a ImageDigest,
    ) -> BoxFuture<'a, Result<Sha256, String>>;
}

/// The remotes themselves: repositories by the `git` command, registries by their own protocol.
struct Remote {
    client: kube::Client,
    git: Git,
    images: Images,
    datastore: datastore::Client,
    /// What is known of each branch that layers follow.
    relevance: Mutex<HashMap<Branch, Arc<Relevance>>>,
}

#[derive(Debug)]
pub struct Desk {
    reader: Arc<dyn Reader>,
    now: fn() -> Timestamp,
    findings: Mutex<HashMap<Question, Finding>>,
    /// The layers that wait for a repository's branches, kept up by the layers' own reconciles.
    followers: Mutex<BTreeMap<(String, String), BTreeSet<String>>>,
    /// The newest wish of a layer for a look at its repository, and which of the looks answers it.
    latest: Mutex<HashMap<Waiting, (String, u64)>>,
    ask: mpsc::UnboundedSender<Question>,
    asked: Mutex<Option<mpsc::UnboundedReceiver<Question>>>,
    tell_repository: mpsc::UnboundedSender<ObjectRef<Handle<TerraformRepository>>>,
    tell_layer: mpsc::UnboundedSender<ObjectRef<Handle<TerraformLayer>>>,
    tell_run: mpsc::UnboundedSender<ObjectRef<Handle<TerraformRun>>>,
    tell_repo: mpsc::UnboundedSender<ObjectRef<Handle<Repo>>>,
    tell_terraform: mpsc::UnboundedSender<ObjectRef<Handle<Terraform>>>,
    tell_notification: mpsc::UnboundedSender<ObjectRef<Handle<TerraformNotification>>>,
    news: Mutex<Option<AllNews>>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("git", &self.git).finish_non_exhaustive()
    }
}

impl Desk {
    pub fn new(
        client: kube::Client,
        git: Git,
        images: Images,
        datastore: datastore::Client,
        now: fn() -> Timestamp,
    ) -> Self {
        Self::over(Arc::new(Remote { client, git, images, datastore, relevance: Mutex::default() }), now)
    }

    /// A desk whose answers come from `reader`.
    pub fn over(reader: Arc<dyn Reader>, now: fn() -> Timestamp) -> Self {
        // Unbounded, but each question is in the queue at most once, and there are at most a few questions a layer.
        let (ask, asked) = mpsc::unbounded();
        let (tell_repository, repositories) = mpsc::unbounded();
        let (tell_layer, layers) = mpsc::unbounded();
        let (tell_run, runs) = mpsc::unbounded();
        let (tell_repo, repos) = mpsc::unbounded();
        let (tell_terraform, terraforms) = mpsc::unbounded();
        let (tell_notification, notifications) = mpsc::unbounded();
        Self {
            reader,
            now,
            findings: Mutex::default(),
            followers: Mutex::default(),
            latest: Mutex::default(),
            ask,
            asked: Mutex::new(Some(asked)),
            tell_repository,
            tell_layer,
            tell_run,
            tell_repo,
            tell_terraform,
            tell_notification,
            news: Mutex::new(Some(AllNews { repositories, layers, runs, repos, terraforms, notifications })),
        }
    }

    pub(crate) fn news(&self) -> Option<AllNews> {
        locked(&self.news).take()
    }

    /// Remembers that a layer follows a repository, so that a change of the repository's branches reaches it.
    pub(crate) fn follow(&self, layer: &TerraformLayer) {
        let Some(repository) = layer.spec.repository_name() else { return };
        let namespace = layer.namespace().unwrap_or_default();
        let key = (namespace, repository.to_string());
        locked(&self.followers).entry(key).or_default().insert(layer.name_any());
    }

    pub(crate) fn unfollow(&self, namespace: &str, layer: &str) {
        locked(&self.latest)
            .remove(&Waiting::Layer { namespace: namespace.to_owned(), name: layer.to_owned() });
        // O(repositories); layers are deleted rarely.
        for ((of, _), layers) in locked(&self.followers).iter_mut() {
            if of == namespace {
                layers.remove(layer);
            }
        }
    }

    pub(crate) fn layers_of(
        &self,
        repository: &TerraformRepository,
    ) -> Vec<ObjectRef<Handle<TerraformLayer>>> {
        let namespace = repository.namespace().unwrap_or_default();
        let key = (namespace.clone(), repository.name_any());
        let followers = locked(&self.followers);
        followers
            .get(&key)
            .into_iter()
            .flatten()
            .map(|name| ObjectRef::new(name).within(&namespace))
            .collect()
    }

    /// The newest look at a repository, and whether another is under way.
    pub(crate) fn look(&self, place: &Place) -> (Option<Look>, bool) {
        let findings = locked(&self.findings);
        match findings.get(&Question::Heads(place.clone())) {
            Some(finding) => {
                let look = match &finding.answer {
                    Some(Answer::Heads(look)) => Some(look.clone()),
                    Some(
                        Answer::Relevant(_)
                        | Answer::Bundle(_)
                        | Answer::Declared(_)
                        | Answer::Image(_)
                        | Answer::Failed { .. },
                    )
                    | None => None,
                };
                (look, finding.asked)
            }
            None => (None, false),
        }
    }

    /// Asks the remote for its heads; the repository is told when they are there.
    pub(crate) fn look_again(&self, place: &Place, wish: Option<Timestamp>) {
        let waiting = Waiting::Repository { namespace: place.namespace.clone(), name: place.name.clone() };
        let question = Question::Heads(place.clone());
        let mut findings = locked(&self.findings);
        let finding = findings.entry(question.clone()).or_insert_with(Finding::empty);
        finding.waiting.insert(waiting);
        // A look that is under way began before the wish, and may have missed what it is about.
        if !finding.asked {
            finding.wish = wish;
        }
        self.send(finding, question);
    }

    /// What a look found that began after the layer wished for it, by this text. Nothing until it was found; the layer is told.
    pub(crate) fn latest(&self, place: &Place, wish: &str, layer: Waiting) -> Option<Result<Heads, String>> {
        let question = Question::Heads(place.clone());
        let mut findings = locked(&self.findings);
        let finding = findings.entry(question.clone()).or_insert_with(Finding::empty);
        let mut latest = locked(&self.latest);
        let answers = match latest.get(&layer) {
            Some((known, answers)) if known == wish => *answers,
            // A look that is under way may have missed what this is about.
            Some(_) | None => {
                let next = finding.asks + 1;
                latest.insert(layer.clone(), (wish.to_owned(), next));
                next
            }
        };
        let ended = finding.asks - u64::from(finding.asked);
        if ended >= answers {
            match &finding.answer {
                Some(Answer::Heads(look)) => return Some(look.found.clone()),
                Some(
                    Answer::Relevant(_)
                    | Answer::Bundle(_)
                    | Answer::Declared(_)
                    | Answer::Image(_)
                    | Answer::Failed { .. },
                )
                | None => {}
            }
        }
        // The repository writes down what was seen, and the layer goes by that.
        let repository = Waiting::Repository { namespace: place.namespace.clone(), name: place.name.clone() };
        finding.waiting.extend([layer, repository]);
        self.send(finding, question);
        None
    }

    /// The last commit that matters to a layer. Unknown until it was found; whoever waits is told.
    pub(crate) fn relevant(
        &self,
        branch: Branch,
        head: &CommitId,
        interest: Interest,
        waiting: Waiting,
    ) -> Read<Result<CommitId, String>> {
        let question = Question::Relevant { branch, head: head.clone(), interest };
        match self.find(question, waiting) {
            Some(Answer::Relevant(commit)) => Read::Present(Ok(commit)),
            Some(Answer::Failed { why, .. }) => Read::Present(Err(why)),
            Some(Answer::Heads(_) | Answer::Bundle(_) | Answer::Declared(_) | Answer::Image(_)) | None => {
                Read::Unknown
            }
        }
    }

    /// The digest of a commit's files in the datastore. Unknown until they are there; whoever waits is told.
    pub(crate) fn bundle(
        &self,
        place: &Place,
        commit: &CommitId,
        waiting: Waiting,
    ) -> Read<Result<Sha256, String>> {
        self.stored(Question::Bundle { place: place.clone(), commit: commit.clone() }, waiting)
    }

    /// The digest of an image's layers in the datastore. Unknown until they are there; whoever waits is told.
    pub(crate) fn image_bundle(
        &self,
        at: ImageAt,
        digest: &ImageDigest,
        waiting: Waiting,
    ) -> Read<Result<Sha256, String>> {
        self.stored(Question::ImageBundle { at, digest: digest.clone() }, waiting)
    }

    fn stored(&self, question: Question, waiting: Waiting) -> Read<Result<Sha256, String>> {
        match self.find(question, waiting) {
            Some(Answer::Bundle(sha256)) => Read::Present(Ok(sha256)),
            Some(Answer::Failed { why, .. }) => Read::Present(Err(why)),
            Some(Answer::Heads(_) | Answer::Relevant(_) | Answer::Declared(_) | Answer::Image(_)) | None => {
                Read::Unknown
            }
        }
    }

    /// The newest look at the image that a layer follows, and whether another is under way.
    pub(crate) fn image(&self, followed: &Followed) -> (Option<image::Look>, bool) {
        let findings = locked(&self.findings);
        let Some(finding) = findings.get(&Question::Image(followed.clone())) else { return (None, false) };
        let look = match &finding.answer {
            Some(Answer::Image(look)) => Some(look.clone()),
            Some(
                Answer::Heads(_)
                | Answer::Relevant(_)
                | Answer::Bundle(_)
                | Answer::Declared(_)
                | Answer::Failed { .. },
            )
            | None => None,
        };
        (look, finding.asked)
    }

    /// Asks the registry which image it is; the layer is told when that is known.
    pub(crate) fn look_at_image(&self, followed: Followed, sync: Option<String>) {
        let Followed { layer, at: ImageAt { namespace, .. }, .. } = &followed;
        let waiting = Waiting::Layer { namespace: namespace.clone(), name: layer.clone() };
        let question = Question::Image(followed);
        let mut findings = locked(&self.findings);
        let finding = findings.entry(question.clone()).or_insert_with(Finding::empty);
        finding.waiting.insert(waiting);
        if !finding.asked {
            finding.sync = sync;
        }
        self.send(finding, question);
    }

    /// The variables that a module declares. Unknown until they were read; whoever waits is told.
    pub(crate) fn declared(
        &self,
        place: &Place,
        commit: &CommitId,
        module: Module,
        waiting: Waiting,
    ) -> Read<Result<Vec<Declared>, String>> {
        let question = Question::Declared { place: place.clone(), commit: commit.clone(), module };
        match self.find(question, waiting) {
            Some(Answer::Declared(variables)) => Read::Present(Ok(variables)),
            Some(Answer::Failed { why, .. }) => Read::Present(Err(why)),
            Some(Answer::Heads(_) | Answer::Relevant(_) | Answer::Bundle(_) | Answer::Image(_)) | None => {
                Read::Unknown
            }
        }
    }

    fn find(&self, question: Question, waiting: Waiting) -> Option<Answer> {
        let mut findings = locked(&self.findings);
        if findings.len() > KEPT {
            // Rare: everything is found again when it is asked for again.
            findings.retain(|question, finding| finding.asked || question.is_look());
        }
        let finding = findings.entry(question.clone()).or_insert_with(Finding::empty);
        let stale = match &finding.answer {
            None => true,
            Some(Answer::Failed { until, .. }) => *until <= (self.now)(),
            Some(
                Answer::Heads(_)
                | Answer::Relevant(_)
                | Answer::Bundle(_)
                | Answer::Declared(_)
                | Answer::Image(_),
            ) => false,
        };
        if stale {
            finding.waiting.insert(waiting);
            self.send(finding, question);
        }
        finding.answer.clone()
    }

    fn send(&self, finding: &mut Finding, question: Question) {
        if !finding.asked && self.ask.unbounded_send(question).is_ok() {
            finding.asked = true;
            finding.asks += 1;
        }
    }

    /// Answers questions until told to stop, a few at a time.
    pub(crate) async fn work(self: Arc<Self>, stop: CancellationToken) {
        use futures::StreamExt;
        let Some(mut asked) = locked(&self.asked).take() else { return };
        let mut tasks = JoinSet::new();
        let mut askers = HashMap::new();
        let mut turns = Turns::default();
        loop {
            while let Some(question) = turns.next() {
                let (desk, whose) = (self.clone(), question.whose());
                let task = tasks.spawn(async move {
                    let answer = desk.answer(&question).await;
                    desk.found(question, answer);
                });
                askers.insert(task.id(), whose);
            }
            tokio::select! {
                () = stop.cancelled() => break,
                Some(ended) = tasks.join_next_with_id(), if !tasks.is_empty() => {
                    let id = ended.map_or_else(|failed| failed.id(), |(id, ())| id);
                    if let Some(whose) = askers.remove(&id) {
                        turns.ended(&whose);
                    }
                }
                Some(question) = asked.next() => turns.push(question),
            }
        }
        // Git processes die with their tasks; what they would have found is asked for again.
        tasks.shutdown().await;
    }

    async fn answer(&self, question: &Question) -> Answer {
        let at = (self.now)();
        let result = match question {
            Question::Heads(place) => {
                Ok(Answer::Heads(Look { at, found: self.reader.heads(place).await, answers: None }))
            }
            Question::Relevant { branch, head, interest } => {
                self.reader.relevant(branch, head, interest).await.map(Answer::Relevant)
            }
            Question::Bundle { place, commit } => self.reader.bundle(place, commit).await.map(Answer::Bundle),
            Question::Declared { place, commit, module } => {
                self.reader.declared(place, commit, module).await.map(Answer::Declared)
            }
            Question::Image(followed) => {
                let found = self.reader.image(followed).await;
                Ok(Answer::Image(image::Look { at, found, asked: None }))
            }
            Question::ImageBundle { at, digest } => {
                self.reader.image_bundle(at, digest).await.map(Answer::Bundle)
            }
        };
        result.unwrap_or_else(|why| Answer::Failed { why, until: engine::later((self.now)(), TRY_AGAIN) })
    }

    fn found(&self, question: Question, mut answer: Answer) {
        let waiting = {
            let mut findings = locked(&self.findings);
            let finding = findings.entry(question).or_insert_with(Finding::empty);
            let (wish, sync) = (finding.wish.take(), finding.sync.take());
            if let Answer::Image(look) = &mut answer {
                look.asked = sync;
            }
            if let Answer::Heads(look) = &mut answer {
                look.answers = match (&look.found, &finding.answer) {
                    (Ok(_), _) => wish,
                    // What was answered before stays so; the wish of a look that failed is still open.
                    (Err(_), Some(Answer::Heads(before))) => before.answers,
                    (Err(_), _) => None,
                };
            }
            finding.answer = Some(answer);
            finding.asked = false;
            std::mem::take(&mut finding.waiting)
        };
        for who in waiting {
            self.wake(who);
        }
    }

    /// Has an object reconciled now.
    pub fn wake(&self, who: Waiting) {
        // A closed channel means that the controllers have stopped; then nobody waits.
        let _ = match who {
            Waiting::Repository { namespace, name } => {
                self.tell_repository.unbounded_send(ObjectRef::new(&name).within(&namespace)).is_ok()
            }
            Waiting::Layer { namespace, name } => {
                self.tell_layer.unbounded_send(ObjectRef::new(&name).within(&namespace)).is_ok()
            }
            Waiting::Run { namespace, name } => {
                self.tell_run.unbounded_send(ObjectRef::new(&name).within(&namespace)).is_ok()
            }
            Waiting::Repo { namespace, name } => {
                self.tell_repo.unbounded_send(ObjectRef::new(&name).within(&namespace)).is_ok()
            }
            Waiting::Terraform { namespace, name } => {
                self.tell_terraform.unbounded_send(ObjectRef::new(&name).within(&namespace)).is_ok()
            }
            Waiting::Notification { namespace, name } => {
                self.tell_notification.unbounded_send(ObjectRef::new(&name).within(&namespace)).is_ok()
            }
        };
    }
}

/// Who asks next, of repositories and of registries: these wait for different things, and so have tasks of their own.
#[derive(Debug)]
struct Turns {
    git: Lines,
    registries: Lines,
}

impl Default for Turns {
    fn default() -> Self {
        let git = Lines::new(TASKS, TASKS_OF_ONE);
        Self { git, registries: Lines::new(REGISTRY_TASKS, REGISTRY_TASKS_OF_ONE) }
    }
}

impl Turns {
    fn lines(&mut self, whose: &Whose) -> &mut Lines {
        match whose {
            Whose::Repository(_) => &mut self.git,
            Whose::Registry { .. } => &mut self.registries,
        }
    }

    fn push(&mut self, question: Question) {
        let whose = question.whose();
        self.lines(&whose).push(whose, question);
    }

    fn next(&mut self) -> Option<Question> {
        self.git.next().or_else(|| self.registries.next())
    }

    fn ended(&mut self, whose: &Whose) {
        self.lines(whose).ended(whose);
    }
}

/// Questions in the order they came, repository by repository, as far as each has tasks left. Every step is O(1).
#[derive(Debug)]
struct Lines {
    most: usize,
    most_of_one: usize,
    working: usize,
    queues: HashMap<Whose, Line>,
    /// A repository for each of its questions that may start.
    ready: VecDeque<Whose>,
}

#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<Question>,
    /// How often the repository is among those that are ready; never more than wait.
    ready: usize,
    working: usize,
}

impl Line {
    /// Whether one more of its questions may start.
    fn call(&mut self, most: usize) -> bool {
        let calls = self.ready + self.working < most && self.ready < self.waiting.len();
        self.ready += usize::from(calls);
        calls
    }
}

impl Lines {
    fn new(most: usize, most_of_one: usize) -> Self {
        Self { most, most_of_one, working: 0, queues: HashMap::new(), ready: VecDeque::new() }
    }

    fn push(&mut self, whose: Whose, question: Question) {
        let line = self.queues.entry(whose.clone()).or_default();
        line.waiting.push_back(question);
        if line.call(self.most_of_one) {
            self.ready.push_back(whose);
        }
    }

    fn next(&mut self) -> Option<Question> {
        if self.working >= self.most {
            return None;
        }
        let line = self.queues.get_mut(&self.ready.pop_front()?)?;
        line.ready -= 1;
        line.working += 1;
        self.working += 1;
        line.waiting.pop_front()
    }

    fn ended(&mut self, whose: &Whose) {
        let Some(line) = self.queues.get_mut(whose) else { return };
        self.working = self.working.saturating_sub(1);
        line.working = line.working.saturating_sub(1);
        if line.call(self.most_of_one) {
            self.ready.push_back(whose.clone());
        } else if line.working == 0 && line.waiting.is_empty() {
            self.queues.remove(whose);
        }
    }
}

impl Remote {
    fn relevance(&self, branch: &Branch) -> Arc<Relevance> {
        let mut all = locked(&self.relevance);
        if all.len() >= BRANCHES && !all.contains_key(branch) {
            // Rare: everything is found again when it is asked for again.
            all.clear();
        }
        Arc::clone(all.entry(branch.clone()).or_default())
    }

    async fn source(&self, place: &Place) -> Result<Source, String> {
        let credentials = credentials::read(&self.client, place).await?;
        Ok(Source { url: place.url.clone(), tenant: place.namespace.clone(), credentials })
    }
}

impl Reader for Remote {
    fn heads<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<Heads, String>> {
        Box::pin(async move {
            let source = self.source(place).await?;
            let refs = self.git.resolve(&source).await.map_err(|e| e.to_string())?;
            Ok(heads(&refs))
        })
    }

    fn relevant<'a>(
        &'a self,
        branch: &'a Branch,
        head: &'a CommitId,
        interest: &'a Interest,
    ) -> BoxFuture<'a, Result<CommitId, String>> {
        Box::pin(async move {
            let relevance = self.relevance(branch);
            // A commit that touches few layers leaves the others with what is known, without a word to git.
            if let Some(commit) = relevance.known(head, interest).await {
                return Ok(commit);
            }
            let source = self.source(&branch.place).await?;
            let mirror = self.git.mirror(&source, head).await.map_err(|e| e.to_string())?;
            self.git.relevant(&mirror, head, interest, &relevance).await.map_err(|e| e.to_string())
        })
    }

    fn bundle<'a>(&'a self, place: &'a Place, commit: &'a CommitId) -> BoxFuture<'a, Result<Sha256, String>> {
        Box::pin(async move {
            let source = self.source(place).await?;
            let mirror = self.git.mirror(&source, commit).await.map_err(|e| e.to_string())?;
            let bundle = self.git.bundle(&mirror, commit).await.map_err(|e| e.to_string())?;
            let sha256 = bundle.sha256().clone();
            self.datastore.bundle_put(&sha256, bundle.path()).await.map_err(|e| e.to_string())?;
            Ok(sha256)
        })
    }

    fn declared<'a>(
        &'a self,
        place: &'a Place,
        commit: &'a CommitId,
        module: &'a Module,
    ) -> BoxFuture<'a, Result<Vec<Declared>, String>> {
        Box::pin(async move {
            let source = self.source(place).await?;
            let mirror = self.git.mirror(&source, commit).await.map_err(|e| e.to_string())?;
            let found = self.git.declared(&mirror, commit, module).await.map_err(|e| e.to_string())?;
            found.ok_or_else(|| {
                format!(
                    "{} is a unit of Terragrunt, whose variables cannot be read from outside; name the module itself",
                    module.path
                )
            })
        })
    }

    fn image<'a>(&'a self, followed: &'a Followed) -> BoxFuture<'a, Result<image::Found, String>> {
        Box::pin(async move {
            let Followed { at, wanted, .. } = followed;
            let logins = credentials::read_logins(&self.client, at).await?;
            let found = self.images.resolve(&at.place, wanted, &logins).await.map_err(|e| e.to_string())?;
            Ok(image::Found { tag: found.tag, digest: found.digest })
        })
    }

    fn image_bundle<'a>(
        &'a self,
        at: &'a ImageAt,
        digest: &'a ImageDigest,
    ) -> BoxFuture<'a, Result<Sha256, String>> {
        Box::pin(async move {
            let logins = credentials::read_logins(&self.client, at).await?;
            let bundle = self.images.bundle(&at.place, digest, &logins).await.map_err(|e| e.to_string())?;
            let sha256 = bundle.sha256().clone();
            self.datastore.bundle_put(&sha256, bundle.path()).await.map_err(|e| e.to_string())?;
            Ok(sha256)
        })
    }
}

impl Finding {
    fn empty() -> Self {
        Self { answer: None, asked: false, wish: None, sync: None, waiting: BTreeSet::new(), asks: 0 }
    }
}

/// A default branch with a name that no layer could follow is none.
fn heads(refs: &sources::Refs) -> Heads {
    let default_branch = refs.default_branch.as_ref().and_then(|name| RefName::new(name.as_str()).ok());
    let branches = refs.branches.iter().map(|(name, commit)| (format!("refs/heads/{name}"), commit.clone()));
    let tags = refs.tags.iter().map(|(name, commit)| (format!("refs/tags/{name}"), commit.clone()));
    Heads { default_branch, refs: branches.chain(tags).collect() }
}

/// A panic while the lock was held leaves at worst a finding to be asked for again.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn question(repository: &str, digit: &str) -> Question {
        let place = Place {
            uid: repository.to_owned(),
            name: repository.to_owned(),
            namespace: "default".to_owned(),
            url: GitUrl::new("https://forge.example/x").unwrap(),
            secret: None,
            ssh_key: None,
        };
        Question::Bundle { place, commit: CommitId::new(digit.repeat(40)).unwrap() }
    }

    #[test]
    fn one_repository_never_takes_all_tasks() {
        let mut turns = Turns::default();
        for digit in ["1", "2", "3", "4"] {
            turns.push(question("huge", digit));
        }
        turns.push(question("small", "1"));
        let started: Vec<Question> = std::iter::from_fn(|| turns.next()).collect();
        assert_eq!(started, [question("huge", "1"), question("huge", "2"), question("small", "1")]);
        turns.ended(&question("small", "1").whose());
        assert_eq!(turns.next(), None);
        turns.ended(&question("huge", "1").whose());
        assert_eq!(turns.next(), Some(question("huge", "3")));
        assert_eq!(turns.next(), None);
        for expected in [Some(question("huge", "4")), None] {
            turns.ended(&question("huge", "1").whose());
            assert_eq!(turns.next(), expected);
        }
        turns.ended(&question("huge", "4").whose());
        assert!(turns.git.queues.is_empty() && turns.git.ready.is_empty(), "{turns:?}");
    }

    #[test]
    fn registries_that_hang_keep_neither_git_nor_other_registries_waiting() {
        let image = |namespace: &str, host: &str, layer: &str| {
            let place = ImagePlace { host: host.to_owned(), path: "code".to_owned() };
            let at = ImageAt { namespace: namespace.to_owned(), place, credentials: None };
            let wanted = Wanted::Tag(api::text::ImageTag::new("1").unwrap());
            Question::Image(Followed { layer: layer.to_owned(), at, wanted })
        };
        let mut turns = Turns::default();
        for layer in 0..10 {
            turns.push(image("default", "hangs.example", &layer.to_string()));
        }
        turns.push(image("default", "works.example", "a"));
        turns.push(image("other", "hangs.example", "a"));
        turns.push(question("code", "1"));
        let started: Vec<Question> = std::iter::from_fn(|| turns.next()).collect();
        assert_eq!(started.len(), REGISTRY_TASKS_OF_ONE + 3, "{started:?}");
        assert_eq!(started.first(), Some(&question("code", "1")));
        for other in [image("default", "works.example", "a"), image("other", "hangs.example", "a")] {
            assert!(started.contains(&other));
        }
    }

    /// Answers nothing by itself.
    #[derive(Debug)]
    struct Nobody;

    impl Reader for Nobody {
        fn heads<'a>(&'a self, _: &'a Place) -> BoxFuture<'a, Result<Heads, String>> {
            Box::pin(std::future::pending())
        }

        fn relevant<'a>(
            &'a self,
            _: &'a Branch,
            _: &'a CommitId,
            _: &'a Interest,
        ) -> BoxFuture<'a, Result<CommitId, String>> {
            Box::pin(std::future::pending())
        }

        fn declared<'a>(
            &'a self,
            _: &'a Place,
            _: &'a CommitId,
            _: &'a Module,
        ) -> BoxFuture<'a, Result<Vec<Declared>, String>> {
            Box::pin(std::future::pending())
        }

        fn bundle<'a>(&'a self, _: &'a Place, _: &'a CommitId) -> BoxFuture<'a, Result<Sha256, String>> {
            Box::pin(std::future::pending())
        }

        fn image<'a>(&'a self, _: &'a Followed) -> BoxFuture<'a, Result<image::Found, String>> {
            Box::pin(std::future::pending())
        }

        fn image_bundle<'a>(
            &'a self,
            _: &'a ImageAt,
            _: &'a ImageDigest,
        ) -> BoxFuture<'a, Result<Sha256, String>> {
            Box::pin(std::future::pending())
        }
    }

    #[test]
    fn who_wants_the_latest_is_answered_by_a_look_that_began_later() {
        let desk = Desk::over(Arc::new(Nobody), Timestamp::now);
        let Whose::Repository(place) = question("code", "1").whose() else { return };
        let layer = |name: &str| Waiting::Layer { namespace: "default".to_owned(), name: name.to_owned() };
        let ends = |found: Result<Heads, String>| {
            let look = Look { at: Timestamp::UNIX_EPOCH, found, answers: None };
            desk.found(Question::Heads(place.clone()), Answer::Heads(look));
        };
        let failed = || Err("connection refused".to_owned());
        desk.look_again(&place, None);
        assert_eq!(desk.latest(&place, "1", layer("a")), None);
        ends(Ok(Heads::default()));
        assert_eq!(desk.latest(&place, "1", layer("a")), None, "that one was under way before");
        assert_eq!(desk.latest(&place, "1", layer("b")), None);
        ends(failed());
        assert_eq!(desk.latest(&place, "1", layer("a")), Some(failed()));
        assert_eq!(desk.latest(&place, "1", layer("b")), None, "it came while this one was under way");
        ends(Ok(Heads::default()));
        assert_eq!(desk.latest(&place, "1", layer("b")), Some(Ok(Heads::default())));
        // Looks that others ask for change nothing about that; a new wish does.
        desk.look_again(&place, None);
        assert_eq!(desk.latest(&place, "1", layer("a")), Some(Ok(Heads::default())));
        assert_eq!(desk.latest(&place, "2", layer("a")), None);
    }

    #[test]
    fn a_wish_is_answered_by_a_look_that_was_begun_for_it_and_succeeded() {
        let desk = Desk::over(Arc::new(Nobody), Timestamp::now);
        let Whose::Repository(place) = question("code", "1").whose() else { return };
        let wish = |second| Some(Timestamp::from_second(second).unwrap());
        let end = |found: Result<Heads, String>| {
            let look = Look { at: Timestamp::UNIX_EPOCH, found, answers: None };
            desk.found(Question::Heads(place.clone()), Answer::Heads(look));
            desk.look(&place).0.unwrap().answers
        };
        desk.look_again(&place, wish(1));
        // This one came while the look was under way.
        desk.look_again(&place, wish(2));
        assert_eq!(end(Ok(Heads::default())), wish(1));
        desk.look_again(&place, wish(2));
        assert_eq!(end(Err("connection refused".to_owned())), wish(1), "a failure answers nothing");
        desk.look_again(&place, wish(2));
        assert_eq!(end(Ok(Heads::default())), wish(2));
        desk.look_again(&place, None);
        assert_eq!(end(Err("connection refused".to_owned())), wish(2), "what was answered stays so");
    }
}
