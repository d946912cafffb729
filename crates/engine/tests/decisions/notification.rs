//! What notifications tell, when and in which words; and that they tell it once.

use std::collections::BTreeMap;
use std::time::Duration;

use api::condition;
use api::notification::{Event, Template, TerraformNotificationStatus};
use api::text::MailAddress;
use api::{TerraformLayer, TerraformNotification, TerraformRun};
use engine::notification::{
    Decision, Fact, Hope, Observed, Stage, TRIED, Tried, check, decide, of_layer, of_run, words,
};
use engine::{Wake, later};
use jiff::Timestamp;
use serde_json::{Value, json};

/// When the notification was made.
const MADE: i64 = 1_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(MADE + second).unwrap()
}

fn fact(id: &str, second: i64) -> Fact {
    Fact {
        id: id.to_owned(),
        event: Event::Applied,
        namespace: "team".to_owned(),
        layer: "db".to_owned(),
        run: Some("db-apply-1".to_owned()),
        revision: Some("a".repeat(40)),
        at: at(second),
        message: "1 added".to_owned(),
    }
}

/// A notification, what happened in its namespace, and what this process has tried.
struct Scene {
    notification: TerraformNotification,
    facts: Vec<Fact>,
    labels: BTreeMap<String, BTreeMap<String, String>>,
    tried: BTreeMap<String, Tried>,
    receiver: Result<(), String>,
    now: Timestamp,
}

fn scene(mut spec: Value) -> Scene {
    spec["to"] = json!({ "slack": { "secretName": "chat" } });
    let notification = serde_json::from_value(json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformNotification", "spec": spec,
        "metadata": { "name": "chat", "namespace": "team", "generation": 1, "creationTimestamp": at(0) },
    }));
    Scene {
        notification: notification.unwrap(),
        facts: Vec::new(),
        labels: BTreeMap::new(),
        tried: BTreeMap::new(),
        receiver: Ok(()),
        now: at(10),
    }
}

impl Scene {
    fn with(mut self, facts: impl IntoIterator<Item = Fact>) -> Self {
        self.facts.extend(facts);
        self
    }

    fn decide(&self) -> Decision {
        decide(&Observed {
            now: self.now,
            notification: &self.notification,
            facts: &self.facts,
            labels: &self.labels,
            tried: &self.tried,
            receiver: self.receiver.clone(),
        })
    }

    /// Does what the decision says: writes the status, forgets what is over, sends. Gives back what was sent.
    fn step(&mut self) -> Vec<String> {
        let decision = self.decide();
        self.notification.status = Some(decision.status);
        self.tried.retain(|id, _| decision.open.contains(id));
        for fact in &decision.send {
            let first = Tried { stage: Stage::UnderWay, failures: 0, why: String::new() };
            self.tried.entry(fact.id.clone()).or_insert(first).stage = Stage::UnderWay;
        }
        decision.send.into_iter().map(|fact| fact.id).collect()
    }

    fn takes(&mut self, id: &str) {
        self.takes_except(id, "");
    }

    fn takes_except(&mut self, id: &str, except: &str) {
        let tried = self.tried.get_mut(id).unwrap();
        let (failures, why) = (tried.failures, except.to_owned());
        *tried = Tried { stage: Stage::Taken { at: self.now }, failures, why };
    }

    fn fails(&mut self, id: &str, hope: Hope) {
        let tried = self.tried.get_mut(id).unwrap();
        let stage = Stage::Failed { at: self.now, hope };
        *tried = Tried { stage, failures: tried.failures + 1, why: "it answered 500".to_owned() };
    }

    fn status(&self) -> &TerraformNotificationStatus {
        self.notification.status.as_ref().unwrap()
    }

    fn ready(&self) -> (&str, &str, &str) {
        let ready = condition::find(&self.status().conditions, "Ready").unwrap();
        (&ready.status, &ready.reason, &ready.message)
    }

    fn is(&self, kind: &str) -> bool {
        condition::is_true(&self.status().conditions, kind)
    }
}

#[test]
fn what_happened_is_told_once_the_oldest_first_and_not_again_after_a_restart() {
    let mut scene =
        scene(json!({})).with([fact("second", 2), fact("first", 1), fact("before it was made", -1)]);
    assert_eq!(scene.step(), ["first", "second"]);
    assert_eq!(scene.ready(), ("True", "Telling", "what happens is told to a channel of Slack"));
    assert_eq!(scene.step(), [""; 0], "both are on their way");
    scene.takes("first");
    assert_eq!(scene.step(), [""; 0]);
    assert_eq!(scene.status().last_sent.as_ref().map(|sent| sent.id.as_str()), Some("first"));
    assert_eq!(scene.status().settled.len(), 1);
    scene.tried.clear();
    assert_eq!(scene.step(), ["second"], "of this one nobody knows whether it was taken");
    scene.takes("second");
    scene.step();
    scene.tried.clear();
    assert_eq!(scene.step(), [""; 0]);
    let decision = scene.decide();
    assert_eq!((decision.wake, decision.notes), (Wake::OnChange, Vec::new()));
    assert_eq!(Some(&decision.status), scene.notification.status.as_ref(), "nothing more is written");
}

#[test]
fn only_what_was_asked_for_is_told() {
    let of = |id: &str, event: Event, layer: &str| Fact { event, layer: layer.to_owned(), ..fact(id, 1) };
    let all = || {
        [
            of("db applied", Event::Applied, "db"),
            of("db drifted", Event::Drifted, "db"),
            of("web drifted", Event::Drifted, "web"),
            of("gone destroyed", Event::Destroyed, "gone"),
        ]
    };
    let cases = [
        (json!({}), vec!["db applied", "db drifted", "gone destroyed", "web drifted"]),
        (json!({ "events": ["Drifted"] }), vec!["db drifted", "web drifted"]),
        (json!({ "layers": { "names": ["web", "other"] } }), vec!["web drifted"]),
        (json!({ "layers": { "matchLabels": { "env": "prod" } } }), vec!["db applied", "db drifted"]),
        (json!({ "layers": { "matchLabels": { "env": "prod" }, "names": ["web"] } }), vec![]),
        (json!({ "events": ["Applied"], "layers": { "names": ["db"] } }), vec!["db applied"]),
    ];
    for (spec, expected) in cases {
        let mut scene = scene(spec.clone()).with(all());
        for (layer, env) in [("db", "prod"), ("web", "test")] {
            scene.labels.insert(layer.to_owned(), BTreeMap::from([("env".to_owned(), env.to_owned())]));
        }
        assert_eq!(scene.step(), expected, "{spec}");
    }
}

#[test]
fn a_failure_is_tried_again_after_pauses_that_grow_and_then_given_up_in_words() {
    let mut scene = scene(json!({})).with([fact("applied", 1)]);
    assert_eq!(scene.step(), ["applied"]);
    let mut pauses = Vec::new();
    loop {
        scene.fails("applied", Hope::Some);
        let decision = scene.decide();
        assert!(decision.send.is_empty(), "not at once");
        let Wake::At(again) = decision.wake else {
            assert_eq!(decision.given_up, 1);
            let notes: Vec<&str> = decision.notes.iter().map(|note| note.message.as_str()).collect();
            assert_eq!(notes, ["Applied of layer db was given up: it answered 500"]);
            break;
        };
        pauses.push(again.duration_since(scene.now).as_secs());
        scene.step();
        assert_eq!(
            scene.ready(),
            ("False", "NotTaken", "Applied of layer db was not taken: it answered 500; it is tried again")
        );
        assert!(scene.is("Reconciling") && !scene.is("Stalled"));
        scene.now = again;
        assert_eq!(scene.step(), ["applied"]);
        assert_eq!(scene.ready().1, "NotTaken", "while it is on its way again, too");
        assert_eq!(scene.step(), [""; 0]);
    }
    assert_eq!(pauses[..4], [2, 4, 8, 16]);
    assert_eq!(pauses.last(), Some(&600));
    assert!(
        pauses.iter().sum::<i64>() < 3600 && later(scene.now, Duration::from_secs(600)) > later(at(1), TRIED)
    );
    scene.step();
    assert_eq!(scene.ready(), ("False", "GivenUp", "Applied of layer db was given up: it answered 500"));
    assert!(scene.is("Stalled") && !scene.is("Reconciling"));
    assert_eq!(scene.step(), [""; 0]);

    scene.facts.push(fact("next", scene.now.as_second() - MADE));
    assert_eq!(scene.step(), ["next"]);
    scene.takes("next");
    scene.step();
    assert_eq!(scene.ready().1, "Telling", "it takes what it is told again");
    assert_eq!(scene.status().last_failure, None);
}

#[test]
fn what_the_receiver_does_not_want_is_not_tried_again_and_keeps_nothing_waiting() {
    let mut scene = scene(json!({})).with([fact("bad", 1), fact("good", 2)]);
    assert_eq!(scene.step(), ["bad", "good"]);
    scene.fails("bad", Hope::None);
    scene.takes("good");
    assert_eq!(scene.step(), [""; 0]);
    assert_eq!(scene.status().settled.len(), 2);
    assert_eq!(scene.ready().1, "GivenUp");
    assert_eq!(scene.decide().wake, Wake::OnChange);
}

#[test]
fn what_some_did_not_take_is_told_once_and_not_tried_again() {
    let mut scene = scene(json!({})).with([fact("applied", 1)]);
    scene.notification.spec.to = serde_json::from_value(json!({ "email": {
        "secretName": "mail", "from": "terrane@example.org", "to": ["ann@example.org", "bob@example.org"],
    } }))
    .unwrap();
    assert_eq!(scene.step(), ["applied"]);
    assert_eq!(scene.ready(), ("True", "Telling", "what happens is told to people by e-mail"));
    scene.fails("applied", Hope::Some);
    scene.now = at(100);
    assert_eq!(scene.step(), ["applied"]);
    scene.takes_except("applied", "mail did not take it for bob@example.org (550)");
    let words =
        "Applied of layer db was taken, but not by all: mail did not take it for bob@example.org (550)";
    let notes = scene.decide().notes;
    let notes: Vec<_> = notes.iter().map(|note| (note.reason.as_str(), note.message.as_str())).collect();
    assert_eq!(notes, [("PartlyTaken", words)]);
    assert_eq!(scene.step(), [""; 0]);
    assert_eq!(scene.ready(), ("True", "PartlyTaken", words));
    let except = scene.status().last_sent.as_ref().and_then(|sent| sent.except.clone());
    assert_eq!(except.as_deref(), Some("mail did not take it for bob@example.org (550)"));
    assert_eq!((scene.step(), scene.decide().notes), (Vec::new(), Vec::new()));

    scene.facts.push(fact("next", 101));
    assert_eq!(scene.step(), ["next"]);
    scene.takes("next");
    scene.step();
    assert_eq!(scene.ready().1, "Telling", "it was taken by all");
}

#[test]
fn nothing_is_sent_while_it_cannot_be_and_what_happened_meanwhile_follows() {
    let mut scene = scene(json!({})).with([fact("applied", 1)]);
    scene.receiver = Err("Secret chat does not exist".to_owned());
    assert_eq!(scene.step(), [""; 0]);
    assert_eq!(scene.ready(), ("False", "CannotBeTold", "Secret chat does not exist"));
    assert!(scene.is("Stalled"));
    assert_eq!(scene.decide().wake, Wake::At(later(scene.now, Duration::from_secs(30))));
    scene.receiver = Ok(());
    scene.notification.spec.template = Some(Template { title: Some("{plan}".to_owned()), text: None });
    assert_eq!(scene.step(), [""; 0]);
    assert_eq!(
        scene.ready().2,
        "spec.template.title asks for {plan}; there are event, namespace, layer, message, run, revision, at, and {{ is a brace"
    );
    scene.notification.spec.template = None;
    assert_eq!(scene.step(), ["applied"]);
}

#[test]
fn what_goes_on_is_told_once_as_long_as_it_is_seen() {
    let mut scene = scene(json!({})).with([fact("drift", 1)]);
    assert_eq!(scene.step(), ["drift"]);
    scene.takes("drift");
    scene.step();
    for hour in 1..6 {
        scene.facts = vec![fact("drift", hour * 3600)];
        scene.now = at(hour * 3600 + 5);
        assert_eq!(scene.step(), [""; 0], "hour {hour}");
    }
    scene.facts = vec![fact("drift", 24 * 3600)];
    scene.now = at(24 * 3600);
    let other = fact("other", 24 * 3600);
    scene.facts.push(other);
    assert_eq!(scene.step(), ["other"], "it is seen again before anything is forgotten");
}

#[test]
fn more_than_can_be_remembered_is_not_told_twice() {
    let most = TerraformNotificationStatus::SETTLED;
    let mut scene = scene(json!({})).with((0..700).map(|n| fact(&format!("{n:03}"), n)));
    scene.now = at(700);
    assert_eq!(scene.step().len(), 700);
    for n in 0..700 {
        scene.takes(&format!("{n:03}"));
    }
    assert_eq!(scene.step(), [""; 0]);
    assert_eq!(scene.status().settled.len(), most);
    assert_eq!(scene.status().since.as_ref().map(|since| since.0), Some(at(699 - most as i64)));
    scene.tried.clear();
    assert_eq!(scene.step(), [""; 0]);
    scene.facts.push(fact("new", 700));
    assert_eq!(scene.step(), ["new"]);
}

fn run(action: &str, mode: &str, state: &str, reason: &str) -> TerraformRun {
    serde_json::from_value(json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRun",
        "metadata": { "name": "db-run-1", "namespace": "team" },
        "spec": {
            "layer": { "name": "db", "uid": "uid-db", "revision": "a".repeat(40) }, "action": action, "mode": mode,
            "state": "0".repeat(64), "trigger": { "kind": "auto", "reason": "" },
        },
        "status": { "state": state, "finishedAt": at(5), "result": { "reason": reason, "message": "in words" } },
    }))
    .unwrap()
}

#[test]
fn the_end_of_a_run_is_told_unless_somebody_wanted_it_to_end() {
    let cases = [
        ("apply", "normal", "Succeeded", "Succeeded", Some(Event::Applied)),
        ("apply", "destroy", "Succeeded", "Succeeded", Some(Event::Destroyed)),
        ("apply", "normal", "Failed", "ToolFailed", Some(Event::ApplyFailed)),
        ("apply", "destroy", "Failed", "OutcomeUnknown", Some(Event::ApplyFailed)),
        ("apply", "normal", "Failed", "Stale", None),
        ("plan", "normal", "Failed", "ToolFailed", Some(Event::PlanFailed)),
        ("plan", "normal", "Failed", "Canceled", None),
        ("plan", "normal", "Failed", "Superseded", None),
        ("plan", "normal", "Succeeded", "Succeeded", None),
        ("plan", "normal", "FailureGracePeriod", "ToolFailed", None),
        ("apply", "normal", "Running", "Running", None),
    ];
    for (action, mode, state, reason, event) in cases {
        let found = of_run(&run(action, mode, state, reason));
        assert_eq!(found.as_ref().map(|fact| fact.event), event, "{action} {mode} {state} {reason}");
        if let Some(found) = found {
            assert_eq!((found.at, found.message.as_str()), (at(5), "in words"));
        }
    }
}

fn layer(status: Value) -> TerraformLayer {
    serde_json::from_value(json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer",
        "metadata": { "name": "db", "namespace": "team", "uid": "uid-db" },
        "spec": { "repository": { "name": "code" }, "branch": "main", "path": "db" }, "status": status,
    }))
    .unwrap()
}

fn said(kind: &str, reason: &str) -> Value {
    json!({ "type": kind, "status": "True", "reason": reason, "message": "in words", "lastTransitionTime": at(3) })
}

#[test]
fn the_same_question_and_the_same_drift_have_the_same_name_until_something_is_applied() {
    let waiting = |run: &str, adds: u32, applied: &str| {
        let runs = [run, applied].map(|name| {
            let action = if name == applied { "apply" } else { "plan" };
            json!({ "name": name, "action": action, "commit": "a".repeat(40), "date": at(1), "result": "" })
        });
        let found = of_layer(&layer(json!({
            "conditions": [said("Ready", "WaitingForApproval"), said("Drifted", "Drifted")],
            "revision": { "relevant": "a".repeat(40), "planned": "a".repeat(40) }, "latestRuns": runs,
            "plan": {
                "run": run, "attempt": 0, "sha256": "0".repeat(64), "madeAt": at(2),
                "summary": { "add": adds, "change": 0, "destroy": 0 },
            },
            "drift": { "run": run, "foundAt": at(2), "total": adds },
        })));
        assert_eq!(
            found.iter().map(|fact| fact.event).collect::<Vec<_>>(),
            [Event::ApprovalNeeded, Event::Drifted]
        );
        found.into_iter().map(|fact| fact.id).collect::<Vec<_>>()
    };
    let first = waiting("plan-1", 1, "apply-1");
    assert_eq!(first, waiting("plan-2", 1, "apply-1"));
    assert!(first.iter().zip(waiting("plan-2", 2, "apply-1")).all(|(one, other)| *one != other));
    assert!(first.iter().zip(waiting("plan-2", 1, "apply-2")).all(|(one, other)| *one != other));
    assert_ne!(first[0], first[1]);
}

#[test]
fn a_layer_that_is_stuck_says_so_and_a_quiet_one_nothing() {
    let stuck =
        of_layer(&layer(json!({ "conditions": [said("Ready", "Failed"), said("Stalled", "Failed")] })));
    assert_eq!(stuck.iter().map(|fact| (fact.event, fact.at)).collect::<Vec<_>>(), [(Event::Stalled, at(3))]);
    assert_eq!(of_layer(&layer(json!({ "conditions": [said("Ready", "InSync")] }))), []);
}

#[test]
fn a_mail_is_plain_ascii_in_short_lines_whatever_it_says() {
    let from: MailAddress = "terrane@example.org".parse().unwrap();
    let to: [MailAddress; 2] = ["ann@example.org", "bob@example.org"].map(|one| one.parse().unwrap());
    let said = |message: &str| Fact { message: message.to_owned(), ..fact("f00", 1) };
    let mail = |title: &str, message: &str| {
        let (said, template) = (said(message), template(title, "{message}"));
        let words = words(&said, Some(&template));
        (words.for_mail(&said, &from, &to), words.text)
    };
    assert_eq!(
        mail("{layer}: {event}", "1 added\nno more").0,
        "Date: Mon, 12 Jan 1970 13:46:41 -0000\r\nFrom: terrane@example.org\r\nTo: ann@example.org,\r\n bob@example.org\r\n\
         Message-ID: <f00@example.org>\r\nSubject: db: Applied\r\nAuto-Submitted: auto-generated\r\nTerrane-Event: Applied\r\n\
         MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n\
         1 added\r\nno more\r\n"
    );
    let odd = [
        "\r\nBcc: eve@example.org\r\n\r\nhello",
        "=?utf-8?q?=0D=0ABcc:_eve?=",
        &"\u{1f600}".repeat(300),
        &"long word ".repeat(2000),
        "trailing blank \n\ttabs\t\n.\n=",
    ];
    for text in odd {
        let (mail, meant) = mail("{message}", text);
        assert!(mail.is_ascii() && mail.ends_with("\r\n"), "{mail}");
        for line in mail.split("\r\n") {
            assert!(
                line.len() <= 78 && !line.contains(['\r', '\n']) && !line.ends_with([' ', '\t']),
                "{line:?}"
            );
        }
        let (head, body) = mail.split_once("\r\n\r\n").unwrap();
        let fields = head.split("\r\n").filter(|line| !line.starts_with(' ')).count();
        assert_eq!(fields, 10, "no field more than ours: {head}");
        // Each piece is read alone.
        for piece in head.split("=?utf-8?q?").skip(1) {
            let bytes = unquoted(&piece.split("?=").next().unwrap().replace('_', " "));
            assert!(String::from_utf8(bytes).is_ok(), "a letter is divided: {head}");
        }
        let read = String::from_utf8(unquoted(&body.replace("=\r\n", ""))).unwrap();
        assert_eq!(read.lines().collect::<Vec<_>>(), meant.lines().collect::<Vec<_>>());
    }
}

/// What quoted-printable stands for.
fn unquoted(text: &str) -> Vec<u8> {
    let mut found = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'=' {
            let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
            found.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
        } else {
            found.push(byte);
        }
    }
    found
}

fn template(title: &str, text: &str) -> Template {
    Template { title: Some(title.to_owned()), text: Some(text.to_owned()) }
}

#[test]
fn a_template_has_names_in_braces_and_nothing_else() {
    let applied = fact("applied", 1);
    let own = words(&applied, None);
    assert_eq!(own.title, "team/db: a plan was applied");
    assert_eq!(own.text, format!("1 added\nrun db-apply-1\ncommit {}", "a".repeat(40)));
    let filled = words(&applied, Some(&template("{event} {{{layer}}}", "{namespace} {run} {message} {at}")));
    assert_eq!(filled.title, "Applied {db}");
    assert_eq!(filled.text, "team db-apply-1 1 added 1970-01-12T13:46:41Z");
    // What is put in is not filled in again, and makes no second line of a title.
    let message = "{layer}\r\n\u{1b}[31mred\u{202e}".to_owned();
    let odd = words(&Fact { message, ..applied }, Some(&template("{message}", "{message}")));
    assert_eq!((odd.title.as_str(), odd.text.as_str()), ("{layer} [31mred", "{layer}\n[31mred"));
    for (title, why) in [
        ("{plan}", "spec.template.title asks for {plan}; there are"),
        ("{", "spec.template.title asks for {}; there are"),
        ("a } b", "spec.template.title has a brace that does not begin; }} is a brace"),
    ] {
        let refused = check(Some(&template(title, "ok"))).unwrap_err();
        assert!(refused.starts_with(why), "{refused}");
    }
    assert_eq!(check(Some(&template("{layer}", "{at}"))), Ok(()));
}

#[test]
fn what_a_layer_says_is_no_markup_to_slack_and_teams_and_not_too_long_for_them() {
    let message = format!("<!channel> [link](https://bad.example) {}", "x".repeat(20_000));
    let said = Fact { layer: "<b>".to_owned(), message, ..fact("applied", 1) };
    let words = words(&said, None);
    let slack = words.for_slack();
    assert_eq!(slack["text"], "team/&lt;b&gt;: a plan was applied");
    let blocks = slack["blocks"].as_array().unwrap();
    assert!(blocks.iter().all(|block| block["text"]["type"] == "plain_text"), "{slack}");
    assert_eq!(blocks[1]["text"]["text"].as_str().unwrap().chars().count(), 3000);
    let card = &words.for_teams()["attachments"][0]["content"];
    assert_eq!(card["type"], "AdaptiveCard");
    let body = card["body"].as_array().unwrap();
    assert!(body.iter().all(|block| block["type"] == "RichTextBlock"), "{card}");
    assert!(card.to_string().len() < 28_000, "what Teams takes");
    let webhook = words.for_webhook(&said);
    assert_eq!(
        (&webhook["id"], &webhook["event"], &webhook["layer"]),
        (&json!("applied"), &json!("Applied"), &json!("<b>"))
    );
    assert!(webhook["message"].as_str().unwrap().chars().count() <= 8192);
}
