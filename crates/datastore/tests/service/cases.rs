//! What the service promises, wherever its objects rest.

use std::collections::BTreeSet;
use std::time::Duration;

use api::attempt::{Description, Kept, PlanSource};
use api::audit::Entry;
use api::run::{Action, Mode, TriggerKind};
use api::text::{CommitId, Sha256};
use bytes::Bytes;
use datastore::client::{Error, LockChange};
use datastore::{Artefact, Attempt, RunUid, StateId, Subject};
use futures::{StreamExt, TryStreamExt};
use jiff::SignedDuration;
use reqwest::StatusCode;

use crate::harness::{Harness, description, identity, state_text};

pub(crate) async fn artefacts_are_written_once_and_repeating_is_harmless(harness: Harness) {
    let attempt = harness.describe(&description("team", "run-1", Action::Plan, 0, "s")).await;
    let runner = harness.client("team/run-1/1");
    runner.artefact_put(&attempt, Artefact::Plan, Bytes::from_static(b"plan")).await.unwrap();
    runner.artefact_put(&attempt, Artefact::Plan, Bytes::from_static(b"plan")).await.unwrap();
    let error =
        runner.artefact_put(&attempt, Artefact::Plan, Bytes::from_static(b"other")).await.unwrap_err();
    assert!(matches!(error, Error::Conflict(_)), "{error}");
    let controller = harness.client("controller");
    let stored = controller.artefact_get(&attempt, Artefact::Plan, 100).await.unwrap().unwrap();
    assert_eq!(stored, "plan");
    assert!(controller.artefact_get(&attempt, Artefact::Result, 100).await.unwrap().is_none());
    assert!(matches!(
        controller.artefact_get(&attempt, Artefact::Plan, 3).await,
        Err(Error::TooLarge { .. })
    ));
}

pub(crate) async fn a_run_is_forgotten_whole_and_no_other_with_it(harness: Harness) {
    let controller = harness.client("controller");
    let mut attempts = Vec::new();
    for run in ["run-1", "run-10"] {
        let attempt = harness.describe(&description("team", run, Action::Plan, 0, "s")).await;
        let runner = harness.client(&format!("team/{run}/1"));
        runner.artefact_put(&attempt, Artefact::Plan, Bytes::from_static(b"plan")).await.unwrap();
        runner.log_append(&attempt, 0, Bytes::from_static(b"line\n")).await.unwrap();
        attempts.push(attempt);
    }
    let [gone, kept] = attempts.as_slice() else { panic!("two runs") };
    let run = RunUid::new("run-1").unwrap();
    let spec = controller.artefact_get(gone, Artefact::Spec, 10_000).await.unwrap().unwrap();
    let left = spec.len() + b"plan".len() + b"line\n".len();
    assert_eq!(controller.run_size(&run).await.unwrap(), u64::try_from(left).unwrap());
    let runner = harness.client("team/run-1/1");
    assert!(matches!(runner.run_size(&run).await, Err(Error::Refused { .. })));
    controller.run_delete(&run).await.unwrap();
    assert_eq!(controller.run_size(&run).await.unwrap(), 0);
    controller.run_delete(&run).await.unwrap();
    for artefact in Artefact::ALL {
        assert!(!controller.artefact_exists(gone, artefact).await.unwrap(), "{artefact:?}");
    }
    let log = controller.log_get(gone, 0).await.unwrap().try_collect::<Vec<Bytes>>().await.unwrap();
    assert_eq!(log.concat(), b"");
    assert!(controller.artefact_exists(kept, Artefact::Plan).await.unwrap());
    assert!(controller.artefact_exists(kept, Artefact::Spec).await.unwrap());
    let log = controller.log_get(kept, 0).await.unwrap().try_collect::<Vec<Bytes>>().await.unwrap();
    assert_eq!(log.concat(), b"line\n");
}

pub(crate) async fn a_body_that_is_not_what_its_digest_says_is_refused_and_leaves_nothing(harness: Harness) {
    let wrong = Sha256::of(b"something else");
    // The large one is on its way to where it would rest before its digest is known.
    for size in [7, 11 * 1024 * 1024] {
        let status = reqwest::Client::new()
            .put(format!("{}/v1/bundles/{wrong}", harness.base))
            .bearer_auth("controller")
            .header("terrane-sha256", wrong.as_str())
            .body(vec![1u8; size])
            .send()
            .await
            .unwrap()
            .status();
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(!harness.client("controller").bundle_exists(&wrong).await.unwrap());
        assert_eq!(harness.names("staging").await, [""; 0]);
    }
}

pub(crate) async fn a_large_bundle_streams_through_and_rests_encrypted(harness: Harness) {
    let controller = harness.client("controller");
    let file = harness.dir.path().join("bundle");
    // Larger than two parts of an upload, and recognisable.
    let content: Vec<u8> = b"CANARY-IN-BUNDLE ".iter().copied().cycle().take(20 * 1024 * 1024 + 7).collect();
    std::fs::write(&file, &content).unwrap();
    let sha256 = Sha256::of(&content);
    controller.bundle_put(&sha256, &file).await.unwrap();
    controller.bundle_put(&sha256, &file).await.unwrap();
    assert!(controller.bundle_exists(&sha256).await.unwrap());
    let mut out = tokio::fs::File::create(harness.dir.path().join("copy")).await.unwrap();
    assert_eq!(controller.bundle_get(&sha256, &mut out).await.unwrap(), content.len() as u64);
    assert!(std::fs::read(harness.dir.path().join("copy")).unwrap() == content);

    let stored = format!("bundles/{sha256}");
    let mut sealed = harness.stored(&stored).await;
    // The content repeats every seventeen bytes, so any stretch of plain text in the first part would show it.
    assert!(!sealed[..100_000].windows(16).any(|window| window == b"CANARY-IN-BUNDLE"));
    let left = harness.names("staging").await;
    assert!(left.is_empty(), "nothing stays in staging: {left:?}");

    // One changed bit in the middle: the read fails, and never as if it were whole.
    let middle = sealed.len() / 2;
    sealed[middle] ^= 4;
    harness.overwrite(&stored, &sealed).await;
    let mut out = tokio::fs::File::create(harness.dir.path().join("bad")).await.unwrap();
    assert!(controller.bundle_get(&sha256, &mut out).await.is_err());
}

pub(crate) async fn a_bundle_goes_when_it_was_not_used_and_comes_again(harness: Harness) {
    let controller = harness.client("controller");
    let file = harness.dir.path().join("bundle");
    let store = async |content: &'static str| {
        std::fs::write(&file, content).unwrap();
        let sha256 = Sha256::of(content.as_bytes());
        controller.bundle_put(&sha256, &file).await.unwrap();
        sha256
    };
    assert_eq!(controller.bundle_list().await.unwrap().bundles, []);
    let (one, other) = (store("one").await, store("the other").await);
    let kept = controller.bundle_list().await.unwrap();
    let sizes: BTreeSet<_> = kept.bundles.iter().map(|bundle| (bundle.sha256.clone(), bundle.size)).collect();
    assert_eq!(sizes, BTreeSet::from([(one.clone(), 3), (other.clone(), 9)]));
    // A store has a clock of its own.
    let hour = SignedDuration::from_hours(1);
    let (before, after) = (kept.at - hour, kept.at + hour);
    assert!(kept.bundles.iter().all(|bundle| before < bundle.used_at && bundle.used_at < after), "{kept:?}");

    assert!(!controller.bundle_delete(&one, before).await.unwrap(), "it was used since");
    assert!(controller.bundle_keep(&one).await.unwrap());
    assert!(controller.bundle_delete(&one, after).await.unwrap());
    assert!(controller.bundle_delete(&one, after).await.unwrap(), "its answer may have been lost");
    assert!(!controller.bundle_keep(&one).await.unwrap(), "whoever would name it must store it first");
    assert!(!controller.bundle_exists(&one).await.unwrap());
    assert!(controller.bundle_keep(&other).await.unwrap(), "and no other one went with it");
    assert_eq!(store("one").await, one);
    assert!(controller.bundle_keep(&one).await.unwrap());
    let path = format!("/v1/bundles/{one}");
    assert_eq!(harness.raw("DELETE", &path, Some("controller"), "0", "").await, StatusCode::BAD_REQUEST);
}

/// Only where the age of an object can be made up.
pub(crate) async fn who_asks_for_an_old_bundle_makes_it_young(harness: Harness) {
    let controller = harness.client("controller");
    let file = harness.dir.path().join("bundle");
    // The large one is replaced in parts.
    let small = b"small".to_vec();
    let large: Vec<u8> = b"large ".iter().copied().cycle().take(11 * 1024 * 1024).collect();
    for content in [small, large] {
        std::fs::write(&file, &content).unwrap();
        let sha256 = Sha256::of(&content);
        controller.bundle_put(&sha256, &file).await.unwrap();
        let object = harness.dir.path().join(format!("objects/bundles/{sha256}"));
        let age = || std::fs::metadata(&object).unwrap().modified().unwrap().elapsed().unwrap_or_default();
        let grow_old = |hours: u64| {
            let then = std::time::SystemTime::now() - Duration::from_hours(hours);
            std::fs::File::open(&object).unwrap().set_modified(then).unwrap();
        };
        let listed = async || controller.bundle_list().await.unwrap().at - SignedDuration::from_hours(48);

        grow_old(6);
        assert!(controller.bundle_keep(&sha256).await.unwrap());
        assert!(age() >= Duration::from_hours(6), "a use of late is not written down again");
        grow_old(1_000);
        let since = listed().await;
        assert!(controller.bundle_keep(&sha256).await.unwrap());
        assert!(age() < Duration::from_hours(1));
        // By whoever listed it when it was old, and comes late.
        assert!(!controller.bundle_delete(&sha256, since).await.unwrap());
        grow_old(1_000);
        controller.bundle_put(&sha256, &file).await.unwrap();
        assert!(age() < Duration::from_hours(1), "storing it again is a use");
        assert!(!controller.bundle_delete(&sha256, since).await.unwrap());
        let mut out = tokio::fs::File::create(harness.dir.path().join("copy")).await.unwrap();
        controller.bundle_get(&sha256, &mut out).await.unwrap();
        grow_old(1_000);
        assert!(controller.bundle_delete(&sha256, since).await.unwrap());
    }
    assert_eq!(harness.names("staging").await, [""; 0]);
}

pub(crate) async fn logs_append_in_order_repeat_harmlessly_and_can_be_followed_to_the_end(harness: Harness) {
    let attempt = harness.describe(&description("team", "run-1", Action::Plan, 0, "s")).await;
    let runner = harness.client("team/run-1/1");
    let controller = harness.client("controller");
    let append = async |offset, text: &'static str| {
        runner.log_append(&attempt, offset, Bytes::from_static(text.as_bytes())).await
    };
    assert_eq!(append(0, "hello ").await.unwrap(), 6);
    assert_eq!(append(0, "hello ").await.unwrap(), 6, "a lost answer");
    assert!(matches!(append(0, "HELLO ").await, Err(Error::Conflict(_))), "other bytes");
    assert!(matches!(append(9, "gap").await, Err(Error::LogEnd { end: 6 })), "a gap");
    assert!(matches!(append(3, "lo world").await, Err(Error::LogEnd { end: 6 })), "an overlap");

    let mut follow = std::pin::pin!(controller.log_follow(&attempt, 2).await.unwrap());
    assert_eq!(follow.next().await.unwrap().unwrap(), "llo ");
    assert_eq!(append(6, "world").await.unwrap(), 11);
    assert_eq!(follow.next().await.unwrap().unwrap(), "world");
    runner.artefact_put(&attempt, Artefact::Result, Bytes::from_static(b"{}")).await.unwrap();
    assert!(follow.next().await.is_none(), "the result ends the log");

    let pieces: Vec<Bytes> = controller.log_get(&attempt, 0).await.unwrap().try_collect().await.unwrap();
    assert_eq!(pieces.concat(), b"hello world");
}

pub(crate) async fn a_state_lives_through_locks_versions_and_fences(harness: Harness) {
    harness.describe(&description("team", "old", Action::Apply, 4, "net")).await;
    harness.describe(&description("team", "new", Action::Apply, 5, "net")).await;
    let (old, new) = (harness.client("team/old/1"), harness.client("team/new/1"));
    let id = StateId::new(identity("net").as_str()).unwrap();
    let file = harness.dir.path().join("state");
    let info = |id: &str| Bytes::from(format!("{{\"ID\":\"{id}\",\"Operation\":\"OperationTypeApply\"}}"));
    let mut none = Vec::new();
    assert_eq!(old.state_get(&id, &mut none).await.unwrap(), None);

    std::fs::write(&file, state_text("l", 1, 0)).unwrap();
    let unlocked = old.state_put(&id, &file, None, Some(4)).await.unwrap_err();
    assert!(unlocked.to_string().contains("not locked"), "{unlocked}");
    old.state_lock(&id, LockChange::Take, info("A"), Some(4)).await.unwrap();
    old.state_lock(&id, LockChange::Take, info("A"), Some(4)).await.unwrap();
    old.state_put(&id, &file, Some("A"), Some(4)).await.unwrap();
    old.state_put(&id, &file, Some("A"), Some(4)).await.unwrap();

    // A successor with a higher fence takes the lock of the dead run, which can then do nothing more.
    new.state_lock(&id, LockChange::Take, info("B"), Some(5)).await.unwrap();
    std::fs::write(&file, state_text("l", 2, 3_000_000)).unwrap();
    let fenced = old.state_put(&id, &file, Some("A"), Some(4)).await.unwrap_err();
    assert!(fenced.to_string().contains("fence 4 is lower than 5"), "{fenced}");
    assert!(old.state_lock(&id, LockChange::Release, info("A"), Some(4)).await.is_err());
    let attempt = Attempt::new("old", 1).unwrap();
    let late = old.artefact_put(&attempt, Artefact::Result, Bytes::from_static(b"{}")).await;
    assert!(matches!(late, Err(Error::Conflict(_))), "a result from beyond the fence: {late:?}");
    new.state_put(&id, &file, Some("B"), Some(5)).await.unwrap();
    let mut content = Vec::new();
    new.state_get(&id, &mut content).await.unwrap();
    assert!(content == state_text("l", 2, 3_000_000).as_bytes());

    for (lineage, serial, word) in [("other", 3, "lineage"), ("l", 2, "serial"), ("l", 1, "serial")] {
        std::fs::write(&file, state_text(lineage, serial, 1)).unwrap();
        let error = new.state_put(&id, &file, Some("B"), Some(5)).await.unwrap_err();
        assert!(matches!(&error, Error::Conflict(message) if message.contains(word)), "{error}");
    }
    new.state_lock(&id, LockChange::Release, info("B"), Some(5)).await.unwrap();

    let versions: serde_json::Value =
        harness.get(&format!("/v1/state/{}/versions", identity("net"))).await.json().await.unwrap();
    let serials: Vec<_> =
        versions.as_array().unwrap().iter().map(|step| step["head"]["serial"].clone()).collect();
    assert_eq!(serials, [1, 2]);
    let first = harness.get(&format!("/v1/state/{}/versions/1", identity("net"))).await.text().await.unwrap();
    assert_eq!(first, state_text("l", 1, 0));
    assert_eq!(
        harness.get(&format!("/v1/state/{}/lock", identity("net"))).await.status(),
        StatusCode::NO_CONTENT
    );
}

pub(crate) async fn many_race_for_a_lock_and_one_wins(harness: Harness) {
    harness.describe(&description("team", "a", Action::Apply, 1, "s")).await;
    let runner = harness.client("team/a/1");
    let id = StateId::new(identity("s").as_str()).unwrap();
    let tries = (0..12).map(|n| {
        let (runner, id) = (runner.clone(), id.clone());
        let info = Bytes::from(format!("{{\"ID\":\"{n}\"}}"));
        async move { runner.state_lock(&id, LockChange::Take, info, Some(1)).await }
    });
    let results = futures::future::join_all(tries).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
    for lost in results.iter().filter_map(|result| result.as_ref().err()) {
        assert!(matches!(lost, Error::Refused { status: StatusCode::LOCKED, .. }), "{lost}");
    }
}

pub(crate) async fn the_audit_is_appended_once_read_back_in_order_and_never_changed(harness: Harness) {
    let controller = harness.client("controller");
    let entry = |run: &str, by: Option<&str>| Entry {
        namespace: "team".to_owned(),
        layer: "data.base".to_owned(),
        layer_uid: "layer-uid".to_owned(),
        run: format!("{run}-name"),
        run_uid: run.to_owned(),
        attempt: 0,
        action: Action::Apply,
        state: identity("state"),
        fence: 4,
        revision: CommitId::new("a".repeat(40)).unwrap(),
        plan_sha256: Some(Sha256::of(b"plan")),
        trigger: TriggerKind::Approval,
        by: by.map(str::to_owned),
        reason: "approved".to_owned(),
    };
    let (first, second) = (entry("z-run", Some("jane")), entry("a-run", None));
    controller.audit_append(&first).await.unwrap();
    controller.audit_append(&first).await.expect("the answer was lost, the entry was not");
    controller.audit_append(&second).await.unwrap();
    let changed = controller.audit_append(&entry("z-run", Some("mallory"))).await;
    assert!(matches!(changed, Err(Error::Conflict(_))), "{changed:?}");

    let subject = Subject::new("team", "data.base").unwrap();
    let records = controller.audit_list(&subject).await.unwrap();
    assert_eq!(records.iter().map(|record| &record.entry).collect::<Vec<_>>(), [&first, &second]);
    assert!(records[0].at <= records[1].at);
    let nobody = Subject::new("team", "other").unwrap();
    assert!(controller.audit_list(&nobody).await.unwrap().is_empty());
    let path = "/v1/audit/team/data.base/other-run/0";
    let body = serde_json::to_string(&first).unwrap();
    assert_eq!(harness.raw("PUT", path, Some("controller"), "0", &body).await, StatusCode::BAD_REQUEST);
}

/// Every verb on every path, as a stranger and as a runner, for its own and for others' things: exactly what a runner
/// needs is allowed.
pub(crate) async fn a_runner_may_do_exactly_what_its_run_needs(harness: Harness) {
    let plan_attempt = harness.describe(&description("team", "plan-run", Action::Plan, 0, "own-state")).await;
    harness.describe(&description("team", "neighbour", Action::Apply, 3, "other-state")).await;
    harness.describe(&description("foreign", "stranger", Action::Apply, 3, "foreign-state")).await;
    let apply = Description {
        plan: Some(PlanSource {
            run_uid: "plan-run".to_owned(),
            attempt: 1,
            sha256: Sha256::of(b"plan"),
            expires: None,
        }),
        ..description("team", "apply-run", Action::Apply, 2, "own-state")
    };
    harness.describe(&apply).await;
    let planner = harness.client("team/plan-run/1");
    planner.artefact_put(&plan_attempt, Artefact::Plan, Bytes::from_static(b"plan")).await.unwrap();

    let own_bundle = format!("/v1/bundles/{}", apply.bundle);
    let mut paths = vec![own_bundle.clone(), format!("/v1/bundles/{}", Sha256::of(b"other"))];
    paths.extend(["/v1/bundles".to_owned(), format!("{own_bundle}?unused_since=2200-01-01T00:00:00Z")]);
    for run in ["apply-run/1", "apply-run/2", "plan-run/1", "neighbour/1", "stranger/1"] {
        for artefact in ["spec", "plan", "plan.json", "plan.txt", "result", "inputs", "log?offset=0"] {
            paths.push(format!("/v1/runs/{run}/{artefact}"));
        }
    }
    for run in ["apply-run", "plan-run", "neighbour", "stranger"] {
        paths.push(format!("/v1/runs/{run}"));
    }
    for state in ["own-state", "other-state", "foreign-state"] {
        for more in ["", "/lock", "/versions", "/versions/1"] {
            paths.push(format!("/v1/state/{}{more}", identity(state)));
        }
    }
    paths.extend(["/v1/audit/team/layer".to_owned(), "/v1/audit/team/layer/apply-run/1".to_owned()]);
    let own_state = format!("/v1/state/{}", identity("own-state"));
    let mut allowed = BTreeSet::new();
    for path in &paths {
        for method in ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "LOCK", "UNLOCK"] {
            let stranger = harness.raw(method, path, None, "2", "").await;
            assert!(stranger.is_client_error(), "{method} {path} without a token: {stranger}");
            let status = harness.raw(method, path, Some("team/apply-run/1"), "2", "").await;
            if status != StatusCode::FORBIDDEN && status != StatusCode::METHOD_NOT_ALLOWED {
                allowed.insert(format!("{method} {path}"));
            }
        }
    }
    let mut expected = BTreeSet::new();
    let mut expect = |methods: &[&str], path: &str| {
        expected.extend(methods.iter().map(|method| format!("{method} {path}")));
    };
    expect(&["GET", "HEAD"], &own_bundle);
    expect(&["GET", "HEAD"], &format!("{own_bundle}?unused_since=2200-01-01T00:00:00Z"));
    expect(&["GET", "HEAD"], "/v1/runs/apply-run/1/spec");
    expect(&["GET", "HEAD"], "/v1/runs/plan-run/1/plan");
    for artefact in ["plan", "plan.json", "plan.txt", "result", "inputs"] {
        expect(&["PUT"], &format!("/v1/runs/apply-run/1/{artefact}"));
    }
    expect(&["POST"], "/v1/runs/apply-run/1/log?offset=0");
    expect(&["GET", "HEAD", "POST", "PUT", "LOCK", "UNLOCK"], &own_state);
    expect(&["POST", "DELETE"], &format!("{own_state}/lock"));
    assert_eq!(allowed, expected);

    // What an apply was given, as stored above, is read by the destroy that undoes it, and by nobody else: not by another run of the layer, not by itself,
    // not by a run that names it and does not destroy.
    let undoing = |run: &str, mode: Mode, kept: &str| Description {
        mode,
        kept: Some(Kept { run_uid: kept.to_owned(), attempt: 1 }),
        ..description("team", run, Action::Plan, 0, "own-state")
    };
    harness.describe(&undoing("destroy-run", Mode::Destroy, "apply-run")).await;
    harness.describe(&undoing("normal-run", Mode::Normal, "apply-run")).await;
    let reading = async |token: &str, path: &str| harness.raw("GET", path, Some(token), "0", "").await;
    let path = "/v1/runs/apply-run/1/inputs";
    assert_eq!(reading("team/destroy-run/1", path).await, StatusCode::OK);
    for token in
        ["team/apply-run/1", "team/plan-run/1", "team/normal-run/1", "team/neighbour/1", "foreign/stranger/1"]
    {
        assert_eq!(reading(token, path).await, StatusCode::FORBIDDEN, "{token}");
    }
    for other in ["apply-run/2", "neighbour/1", "stranger/1", "destroy-run/1"] {
        let path = format!("/v1/runs/{other}/inputs");
        assert_eq!(reading("team/destroy-run/1", &path).await, StatusCode::FORBIDDEN, "{path}");
    }
    let status =
        harness.raw("PUT", "/v1/runs/destroy-run/1/inputs", Some("team/destroy-run/1"), "0", "").await;
    assert_eq!(status, StatusCode::FORBIDDEN, "a plan keeps nothing");

    // A plan has no fence: it reads its state and changes nothing, whatever fence it claims.
    for claimed in ["0", "2", "99"] {
        for method in ["LOCK", "POST"] {
            let token = Some("team/plan-run/1");
            let status = harness.raw(method, &own_state, token, claimed, "{\"ID\":\"x\"}").await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{method} with fence {claimed}");
        }
    }
    // A fence that is not one's own is refused, higher or lower.
    for claimed in ["1", "3"] {
        let token = Some("team/apply-run/1");
        let status = harness.raw("LOCK", &own_state, token, claimed, "{\"ID\":\"x\"}").await;
        assert_eq!(status, StatusCode::FORBIDDEN);
    }
    // The same run's uid from another namespace is nobody.
    let status = harness.raw("GET", "/v1/runs/apply-run/1/spec", Some("foreign/apply-run/1"), "2", "").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
}
