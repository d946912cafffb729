//! The desk that reads repositories and registries: network and git take seconds, so they happen in a few bounded tasks of their own and never
//! in a reconcile. What they find is kept here, can always be found again, and wakes whoever waits for it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::bundle::BELIEVED;
use api::template::Declared;
use api::text::{CommitId, ImageDigest, Sha256};
use api::{Repo, Terraform, TerraformLayer, TerraformNotification, TerraformRepository, TerraformRun};
use engine::repository::{Heads, Look};
use engine::{Read, image};
use futures::channel::mpsc;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use sources::oci::Images;
use sources::{Git, Interest, Module};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::news::{AllNews, Waiting};
use super::question::{Answer, Question};
use super::remote::Remote;
use super::turns::Turns;
use super::{Branch, Followed, ImageAt, Place, Reader, locked};
use crate::feed::Handle;

/// How soon something that failed is tried again when it is still wanted.
const TRY_AGAIN: Duration = Duration::from_secs(10);
/// Findings kept; the oldest go first and are found again when needed.
const KEPT: usize = 20_000;

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

impl Finding {
    fn empty() -> Self {
        Self { answer: None, asked: false, wish: None, sync: None, waiting: BTreeSet::new(), asks: 0 }
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
        Self::over(Arc::new(Remote::new(client, git, images, datastore)), now)
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
        let Some(finding) = findings.get(&Question::Heads(place.clone())) else { return (None, false) };
        (finding.answer.as_ref().and_then(Answer::heads).cloned(), finding.asked)
    }

    /// Asks the remote for its heads; the repository is told when they are there.
    pub(crate) fn look_again(&self, place: &Place, wish: Option<Timestamp>, sync: Option<String>) {
        let waiting = Waiting::Repository { namespace: place.namespace.clone(), name: place.name.clone() };
        let question = Question::Heads(place.clone());
        let mut findings = locked(&self.findings);
        let finding = findings.entry(question.clone()).or_insert_with(Finding::empty);
        finding.waiting.insert(waiting);
        // A look that is under way began before the wish, and may have missed what it is about.
        if !finding.asked {
            finding.wish = wish;
            finding.sync = sync;
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
        if ended >= answers
            && let Some(look) = finding.answer.as_ref().and_then(Answer::heads)
        {
            return Some(look.found.clone());
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
            Some(
                Answer::Heads(_)
                | Answer::GoesOn(_)
                | Answer::Bundle { .. }
                | Answer::Declared(_)
                | Answer::Image(_),
            )
            | None => Read::Unknown,
        }
    }

    /// Whether a branch that moved lost nothing. Unknown until it was looked at; whoever waits is told.
    pub(crate) fn goes_on(
        &self,
        place: &Place,
        before: &CommitId,
        head: &CommitId,
        waiting: Waiting,
    ) -> Read<Result<bool, String>> {
        let (before, head) = (before.clone(), head.clone());
        match self.find(Question::GoesOn { place: place.clone(), before, head }, waiting) {
            Some(Answer::GoesOn(does)) => Read::Present(Ok(does)),
            Some(Answer::Failed { why, .. }) => Read::Present(Err(why)),
            Some(
                Answer::Heads(_)
                | Answer::Relevant(_)
                | Answer::Bundle { .. }
                | Answer::Declared(_)
                | Answer::Image(_),
            )
            | None => Read::Unknown,
        }
    }

    /// The digest of a commit's files in the datastore. Unknown until they are there; whoever waits is told. They may be missing where
    /// an attempt that began at `missed` could not use them.
    pub(crate) fn bundle(
        &self,
        place: &Place,
        commit: &CommitId,
        missed: Option<Timestamp>,
        waiting: Waiting,
    ) -> Read<Result<Sha256, String>> {
        self.stored(Question::Bundle { place: place.clone(), commit: commit.clone() }, missed, waiting)
    }

    /// The digest of an image's layers in the datastore. Unknown until they are there; whoever waits is told.
    pub(crate) fn image_bundle(
        &self,
        at: ImageAt,
        digest: &ImageDigest,
        missed: Option<Timestamp>,
        waiting: Waiting,
    ) -> Read<Result<Sha256, String>> {
        self.stored(Question::ImageBundle { at, digest: digest.clone() }, missed, waiting)
    }

    /// Whoever is told that a bundle is there names it in a run. Until then nothing but the question keeps it, so an old answer is none.
    fn stored(
        &self,
        question: Question,
        missed: Option<Timestamp>,
        waiting: Waiting,
    ) -> Read<Result<Sha256, String>> {
        if let Some(finding) = locked(&self.findings).get_mut(&question)
            && let Some(Answer::Bundle { at, .. }) = &finding.answer
            && (engine::later(*at, BELIEVED) <= (self.now)() || missed.is_some_and(|missed| *at < missed))
        {
            finding.answer = None;
        }
        match self.find(question, waiting) {
            Some(Answer::Bundle { sha256, .. }) => Read::Present(Ok(sha256)),
            Some(Answer::Failed { why, .. }) => Read::Present(Err(why)),
            Some(
                Answer::Heads(_)
                | Answer::Relevant(_)
                | Answer::GoesOn(_)
                | Answer::Declared(_)
                | Answer::Image(_),
            )
            | None => Read::Unknown,
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
                | Answer::GoesOn(_)
                | Answer::Bundle { .. }
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
            Some(
                Answer::Heads(_)
                | Answer::Relevant(_)
                | Answer::GoesOn(_)
                | Answer::Bundle { .. }
                | Answer::Image(_),
            )
            | None => Read::Unknown,
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
                | Answer::GoesOn(_)
                | Answer::Bundle { .. }
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
                let found = self.reader.heads(place).await;
                Ok(Answer::Heads(Look { at, found, answers: None, asked: None }))
            }
            Question::Relevant { branch, head, interest } => {
                self.reader.relevant(branch, head, interest).await.map(Answer::Relevant)
            }
            Question::GoesOn { place, before, head } => {
                self.reader.goes_on(place, before, head).await.map(Answer::GoesOn)
            }
            Question::Bundle { place, commit } => {
                self.reader.bundle(place, commit).await.map(|sha256| Answer::Bundle { sha256, at })
            }
            Question::Declared { place, commit, module } => {
                self.reader.declared(place, commit, module).await.map(Answer::Declared)
            }
            Question::Image(followed) => {
                let found = self.reader.image(followed).await;
                Ok(Answer::Image(image::Look { at, found, asked: None }))
            }
            Question::ImageBundle { at: from, digest } => {
                self.reader.image_bundle(from, digest).await.map(|sha256| Answer::Bundle { sha256, at })
            }
        };
        result.unwrap_or_else(|why| Answer::Failed { why, until: engine::later((self.now)(), TRY_AGAIN) })
    }

    fn found(&self, question: Question, mut answer: Answer) {
        let waiting = {
            let mut findings = locked(&self.findings);
            let finding = findings.entry(question).or_insert_with(Finding::empty);
            let (wish, sync) = (finding.wish.take(), finding.sync.take());
            if let Answer::Image(image::Look { asked, .. }) | Answer::Heads(Look { asked, .. }) = &mut answer
            {
                *asked = sync;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use api::text::GitUrl;
    use engine::repository::Heads;

    use super::super::tests::Nobody;
    use super::*;

    fn place() -> Place {
        Place {
            uid: "code".to_owned(),
            name: "code".to_owned(),
            namespace: "default".to_owned(),
            url: GitUrl::new("https://forge.example/x").unwrap(),
            secret: None,
            ssh_key: None,
        }
    }

    /// Whoever believes an old answer may name what has gone.
    #[test]
    fn that_a_bundle_is_there_is_believed_for_a_while_and_not_where_it_was_missed() {
        thread_local! {
            static NOW: std::cell::Cell<i64> = const { std::cell::Cell::new(0) };
        }
        let now = || Timestamp::from_second(NOW.get()).unwrap();
        let desk = Desk::over(Arc::new(Nobody), || Timestamp::from_second(NOW.get()).unwrap());
        let (place, commit) = (place(), CommitId::new("a".repeat(40)).unwrap());
        let sha256 = Sha256::of(b"files");
        let run = || Waiting::Run { namespace: "default".to_owned(), name: "run".to_owned() };
        let wanted = |missed| desk.bundle(&place, &commit, missed, run());
        let question = Question::Bundle { place: place.clone(), commit: commit.clone() };
        let found = || desk.found(question.clone(), Answer::Bundle { sha256: sha256.clone(), at: now() });
        let is_asked = || locked(&desk.findings).get(&question).unwrap().asked;
        assert_eq!(wanted(None), Read::Unknown);
        found();
        let later = i64::try_from(BELIEVED.as_secs()).unwrap();
        NOW.set(later - 1);
        assert_eq!((wanted(None), is_asked()), (Read::Present(Ok(sha256.clone())), false));
        NOW.set(later);
        assert_eq!((wanted(None), is_asked()), (Read::Unknown, true));
        found();
        assert_eq!(wanted(None), Read::Present(Ok(sha256.clone())));
        // An attempt that began later could not use them.
        let missed = Some(Timestamp::from_second(later + 5).unwrap());
        NOW.set(later + 10);
        assert_eq!((wanted(missed), is_asked()), (Read::Unknown, true));
        found();
        assert_eq!(
            (wanted(missed), is_asked()),
            (Read::Present(Ok(sha256.clone())), false),
            "looked at since"
        );
    }

    #[test]
    fn who_wants_the_latest_is_answered_by_a_look_that_began_later() {
        let desk = Desk::over(Arc::new(Nobody), Timestamp::now);
        let place = place();
        let layer = |name: &str| Waiting::Layer { namespace: "default".to_owned(), name: name.to_owned() };
        let ends = |found: Result<Heads, String>| {
            let look = Look { at: Timestamp::UNIX_EPOCH, found, answers: None, asked: None };
            desk.found(Question::Heads(place.clone()), Answer::Heads(look));
        };
        let failed = || Err("connection refused".to_owned());
        desk.look_again(&place, None, None);
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
        desk.look_again(&place, None, None);
        assert_eq!(desk.latest(&place, "1", layer("a")), Some(Ok(Heads::default())));
        assert_eq!(desk.latest(&place, "2", layer("a")), None);
    }

    #[test]
    fn a_wish_is_answered_by_a_look_that_was_begun_for_it_and_succeeded() {
        let desk = Desk::over(Arc::new(Nobody), Timestamp::now);
        let place = place();
        let wish = |second| Some(Timestamp::from_second(second).unwrap());
        let end = |found: Result<Heads, String>| {
            let look = Look { at: Timestamp::UNIX_EPOCH, found, answers: None, asked: None };
            desk.found(Question::Heads(place.clone()), Answer::Heads(look));
            desk.look(&place).0.unwrap().answers
        };
        desk.look_again(&place, wish(1), None);
        // This one came while the look was under way.
        desk.look_again(&place, wish(2), None);
        assert_eq!(end(Ok(Heads::default())), wish(1));
        desk.look_again(&place, wish(2), None);
        assert_eq!(end(Err("connection refused".to_owned())), wish(1), "a failure answers nothing");
        desk.look_again(&place, wish(2), None);
        assert_eq!(end(Ok(Heads::default())), wish(2));
        desk.look_again(&place, None, None);
        assert_eq!(end(Err("connection refused".to_owned())), wish(2), "what was answered stays so");
    }
}
