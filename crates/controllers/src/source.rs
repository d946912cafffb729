//! The desk that reads repositories: network and git take seconds, so they happen in a few bounded tasks of their own and never
//! in a reconcile. What they find is kept here, can always be found again, and wakes whoever waits for it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::template::Declared;
use api::text::{CommitId, GitUrl, RefName, Sha256};
use api::{Repo, Terraform, TerraformLayer, TerraformNotification, TerraformRepository, TerraformRun};
use engine::Read;
use engine::repository::{Heads, Look};
use futures::channel::mpsc;
use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
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
}

impl Question {
    fn place(&self) -> &Place {
        match self {
            Self::Heads(place)
            | Self::Relevant { branch: Branch { place, .. }, .. }
            | Self::Bundle { place, .. }
            | Self::Declared { place, .. } => place,
        }
    }
}

#[derive(Debug, Clone)]
enum Answer {
    Heads(Look),
    Relevant(CommitId),
    Bundle(Sha256),
    Declared(Vec<Declared>),
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
    waiting: BTreeSet<Waiting>,
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
}

/// The remote itself, by the `git` command.
struct Remote {
    client: kube::Client,
    git: Git,
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
    pub fn new(client: kube::Client, git: Git, datastore: datastore::Client, now: fn() -> Timestamp) -> Self {
        Self::over(Arc::new(Remote { client, git, datastore, relevance: Mutex::default() }), now)
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
        let namespace = layer.namespace().unwrap_or_default();
        let key = (namespace, layer.spec.repository.name.to_string());
        locked(&self.followers).entry(key).or_default().insert(layer.name_any());
    }

    pub(crate) fn unfollow(&self, namespace: &str, layer: &str) {
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
                        Answer::Relevant(_) | Answer::Bundle(_) | Answer::Declared(_) | Answer::Failed { .. },
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
            Some(Answer::Heads(_) | Answer::Bundle(_) | Answer::Declared(_)) | None => Read::Unknown,
        }
    }

    /// The digest of a commit's files in the datastore. Unknown until they are there; whoever waits is told.
    pub(crate) fn bundle(
        &self,
        place: &Place,
        commit: &CommitId,
        waiting: Waiting,
    ) -> Read<Result<Sha256, String>> {
        let question = Question::Bundle { place: place.clone(), commit: commit.clone() };
        match self.find(question, waiting) {
            Some(Answer::Bundle(sha256)) => Read::Present(Ok(sha256)),
            Some(Answer::Failed { why, .. }) => Read::Present(Err(why)),
            Some(Answer::Heads(_) | Answer::Relevant(_) | Answer::Declared(_)) | None => Read::Unknown,
        }
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
            Some(Answer::Heads(_) | Answer::Relevant(_) | Answer::Bundle(_)) | None => Read::Unknown,
        }
    }

    fn find(&self, question: Question, waiting: Waiting) -> Option<Answer> {
        let mut findings = locked(&self.findings);
        if findings.len() > KEPT {
            // Rare: everything is found again when it is asked for again.
            findings.retain(|question, finding| finding.asked || matches!(question, Question::Heads(_)));
        }
        let finding = findings.entry(question.clone()).or_insert_with(Finding::empty);
        let stale = match &finding.answer {
            None => true,
            Some(Answer::Failed { until, .. }) => *until <= (self.now)(),
            Some(Answer::Heads(_) | Answer::Relevant(_) | Answer::Bundle(_) | Answer::Declared(_)) => false,
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
        }
    }

    /// Answers questions until told to stop, a few at a time.
    pub(crate) async fn work(self: Arc<Self>, stop: CancellationToken) {
        use futures::StreamExt;
        let Some(mut asked) = locked(&self.asked).take() else { return };
        let mut tasks = JoinSet::new();
        let mut places = HashMap::new();
        let mut turns = Turns::default();
        loop {
            while tasks.len() < TASKS
                && let Some(question) = turns.next()
            {
                let (desk, place) = (self.clone(), question.place().clone());
                let task = tasks.spawn(async move {
                    let answer = desk.answer(&question).await;
                    desk.found(question, answer);
                });
                places.insert(task.id(), place);
            }
            tokio::select! {
                () = stop.cancelled() => break,
                Some(ended) = tasks.join_next_with_id(), if !tasks.is_empty() => {
                    let id = ended.map_or_else(|failed| failed.id(), |(id, ())| id);
                    if let Some(place) = places.remove(&id) {
                        turns.ended(&place);
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
        };
        result.unwrap_or_else(|why| Answer::Failed { why, until: engine::later((self.now)(), TRY_AGAIN) })
    }

    fn found(&self, question: Question, mut answer: Answer) {
        let waiting = {
            let mut findings = locked(&self.findings);
            let finding = findings.entry(question).or_insert_with(Finding::empty);
            let wish = finding.wish.take();
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

/// Questions in the order they came, repository by repository, as far as each has tasks left. Every step is O(1).
#[derive(Debug, Default)]
struct Turns {
    queues: HashMap<Place, Line>,
    /// A repository for each of its questions that may start.
    ready: VecDeque<Place>,
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
    fn call(&mut self) -> bool {
        let calls = self.ready + self.working < TASKS_OF_ONE && self.ready < self.waiting.len();
        self.ready += usize::from(calls);
        calls
    }
}

impl Turns {
    fn push(&mut self, question: Question) {
        let place = question.place().clone();
        let line = self.queues.entry(place.clone()).or_default();
        line.waiting.push_back(question);
        if line.call() {
            self.ready.push_back(place);
        }
    }

    fn next(&mut self) -> Option<Question> {
        let line = self.queues.get_mut(&self.ready.pop_front()?)?;
        line.ready -= 1;
        line.working += 1;
        line.waiting.pop_front()
    }

    fn ended(&mut self, place: &Place) {
        let Some(line) = self.queues.get_mut(place) else { return };
        line.working = line.working.saturating_sub(1);
        if line.call() {
            self.ready.push_back(place.clone());
        } else if line.working == 0 && line.waiting.is_empty() {
            self.queues.remove(place);
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
}

impl Finding {
    fn empty() -> Self {
        Self { answer: None, asked: false, wish: None, waiting: BTreeSet::new() }
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
        turns.ended(question("small", "1").place());
        assert_eq!(turns.next(), None);
        turns.ended(question("huge", "1").place());
        assert_eq!(turns.next(), Some(question("huge", "3")));
        assert_eq!(turns.next(), None);
        for expected in [Some(question("huge", "4")), None] {
            turns.ended(question("huge", "1").place());
            assert_eq!(turns.next(), expected);
        }
        turns.ended(question("huge", "4").place());
        assert!(turns.queues.is_empty() && turns.ready.is_empty(), "{turns:?}");
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
    }

    #[test]
    fn a_wish_is_answered_by_a_look_that_was_begun_for_it_and_succeeded() {
        let desk = Desk::over(Arc::new(Nobody), Timestamp::now);
        let place = question("code", "1").place().clone();
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
