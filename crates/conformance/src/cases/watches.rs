//! Watches: where they begin, what they send, how they end.

use anyhow::Result;
use serde_json::json;

use crate::Scope;
use crate::scope::{MERGE, config_map, revision, text};

cases!("watches": from_a_revision, from_zero, without_a_revision, initial_events, initial_events_need_match, bookmarks, timeout_ends_it, expired, bad_revision, selector_transitions, field_selector, one_object, metadata_only, as_table, deleted_has_last_state, old_watch_path, foreign_group);

async fn maps(s: &Scope) -> Result<String> {
    Ok(format!("{}/secrets", s.namespace().await?))
}

async fn add(s: &Scope, path: &str, name: &str) -> Result<serde_json::Value> {
    s.post(path, &json!({"metadata": {"name": name}})).await?.code(201)
}

async fn from_a_revision(s: Scope) -> Result<()> {
    let path = maps(&s).await?;
    let first = add(&s, &path, "a").await?;
    add(&s, &path, "b").await?;
    let mut events = s.watch(&format!("{path}?watch=true&resourceVersion={}", revision(&first))).await?;
    same!(events.next_named().await?, "ADDED b");
    s.patch(&format!("{path}/a"), MERGE, &json!({"metadata": {"labels": {"x": "1"}}})).await?.ok()?;
    s.delete(&format!("{path}/b")).await?.ok()?;
    let changed = events.next_change().await?;
    same!(
        (text(&changed, "/type"), text(&changed, "/object/metadata/labels/x")),
        ("MODIFIED".to_owned(), "1".to_owned())
    );
    same!(text(&changed, "/object/kind"), "Secret");
    same!(events.next_named().await?, "DELETED b");
    Ok(())
}

async fn from_zero(s: Scope) -> Result<()> {
    let path = maps(&s).await?;
    add(&s, &path, "a").await?;
    s.until(&format!("{path}/a?resourceVersion=0"), |a| a.code == 200).await?;
    let mut events = s.watch(&format!("{path}?watch=true&resourceVersion=0")).await?;
    same!(events.next_named().await?, "ADDED a");
    add(&s, &path, "b").await?;
    same!(events.next_named().await?, "ADDED b");
    Ok(())
}

async fn without_a_revision(s: Scope) -> Result<()> {
    let path = maps(&s).await?;
    add(&s, &path, "a").await?;
    add(&s, &path, "b").await?;
    let mut events = s.watch(&format!("{path}?watch=1")).await?;
    same!(events.next_named().await?, "ADDED a");
    same!(events.next_named().await?, "ADDED b");
    Ok(())
}

async fn initial_events(s: Scope) -> Result<()> {
    let path = maps(&s).await?;
    add(&s, &path, "a").await?;
    let mut events = s.watch(&format!("{path}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")).await?;
    same!(events.next_named().await?, "ADDED a");
    let mark = events.next().await?;
    same!(text(&mark, "/type"), "BOOKMARK");
    same!(mark["object"]["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
    same!(text(&mark, "/object/kind"), "Secret");
    add(&s, &path, "b").await?;
    same!(events.next_named().await?, "ADDED b");
    Ok(())
}

async fn initial_events_need_match(s: Scope) -> Result<()> {
    let path = maps(&s).await?;
    s.get(&format!("{path}?watch=true&sendInitialEvents=true")).await?.refused(422, "Invalid", "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")?;
    Ok(())
}

async fn bookmarks(s: Scope) -> Result<()> {
    let path = maps(&s).await?;
    let made = add(&s, &path, "a").await?;
    let query = format!(
        "{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds=3&resourceVersion={}",
        revision(&made)
    );
    // The last bookmark is due two seconds before the end; a server without a free processor can miss that, so it is asked again.
    let limit = std::time::Instant::now() + crate::scope::LIMIT;
    let mark = loop {
        let mut events = s.watch(&query).await?;
        let mut mark = None;
        while let Some(event) = events.next_or_end().await? {
            same!(text(&event, "/type"), "BOOKMARK");
            mark = Some(event);
        }
        match mark {
            Some(mark) => break mark,
            None => holds!(std::time::Instant::now() < limit, "no watch ends with a bookmark"),
        }
    };
    same!(text(&mark, "/object/kind"), "Secret");
    holds!(revision(&mark["object"]).parse::<u64>()? >= revision(&made).parse()?, "{mark}");
    same!(text(&mark, "/object/metadata/name"), "");
    Ok(())
}

async fn timeout_ends_it(s: Scope) -> Result<()> {
    let path = maps(&s).await?;
    let made = add(&s, &path, "a").await?;
    let mut events =
        s.watch(&format!("{path}?watch=true&timeoutSeconds=1&resourceVersion={}", revision(&made))).await?;
    same!(events.next_or_end().await?, None);
    Ok(())
}

/// A kind of Terrane's: kube-apiserver begins its history of a kind with the definition, long after revision 1, whatever etcd still
/// has; whoever runs this on the embedded API has made it forget an object of the kind.
async fn expired(s: Scope) -> Result<()> {
    let path = "/apis/terrane.dev/v1alpha1/terraformrepositories";
    // A server that is still filling its cache of the kind asks to come back.
    let query = format!("{path}?watch=true&resourceVersion=1&timeoutSeconds=2");
    let answer = s.until(&query, |answer| answer.code == 200).await?;
    let lines = answer.text();
    let mut events = lines.lines().map(serde_json::from_str::<serde_json::Value>);
    let Some(event) = events.next().transpose()? else {
        anyhow::bail!("a watch from revision 1 ends without a word");
    };
    same!(text(&event, "/type"), "ERROR");
    same!(event["object"]["code"], 410);
    same!(text(&event, "/object/reason"), "Expired");
    holds!(text(&event, "/object/message").starts_with("too old resource version: 1 ("), "{event}");
    same!(events.count(), 0);
    Ok(())
}

async fn bad_revision(s: Scope) -> Result<()> {
    let path = maps(&s).await?;
    let answer = s.get(&format!("{path}?watch=true&resourceVersion=abc")).await?;
    same!(
        (answer.code, text(&answer.json()?, "/message")),
        (
            500,
            "resourceVersion: Invalid value: \"abc\": strconv.ParseUint: parsing \"abc\": invalid syntax"
                .to_owned()
        )
    );
    Ok(())
}

async fn selector_transitions(s: Scope) -> Result<()> {
    let path = maps(&s).await?;
    let made = add(&s, &path, "a").await?;
    let mut events = s
        .watch(&format!("{path}?watch=true&labelSelector=x%3D1&resourceVersion={}", revision(&made)))
        .await?;
    for labels in [json!({"x": "1"}), json!({"y": "1"}), json!({"x": "2"}), json!({"x": "1"})] {
        s.patch(&format!("{path}/a"), MERGE, &json!({"metadata": {"labels": labels}})).await?.ok()?;
    }
    s.delete(&format!("{path}/a")).await?.ok()?;
    for wanted in ["ADDED a", "MODIFIED a", "DELETED a", "ADDED a", "DELETED a"] {
        same!(events.next_named().await?, wanted);
    }
    Ok(())
}

async fn field_selector(s: Scope) -> Result<()> {
    let path = maps(&s).await?;
    let made = add(&s, &path, "a").await?;
    let mut events = s
        .watch(&format!(
            "{path}?watch=true&fieldSelector=metadata.name%3Dc&resourceVersion={}",
            revision(&made)
        ))
        .await?;
    add(&s, &path, "b").await?;
    add(&s, &path, "c").await?;
    same!(events.next_named().await?, "ADDED c");
    Ok(())
}

async fn one_object(s: Scope) -> Result<()> {
    let path = maps(&s).await?;
    add(&s, &path, "b").await?;
    let answer = s.get(&format!("{path}/b?watch=true")).await?.code(200)?;
    // Only collections are watched; one object is watched with a field selector.
    same!((text(&answer, "/kind"), text(&answer, "/metadata/name")), ("Secret".to_owned(), "b".to_owned()));
    Ok(())
}

async fn metadata_only(s: Scope) -> Result<()> {
    let path = maps(&s).await?;
    add(&s, &path, "a").await?;
    let partial = s.with_header("accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")?;
    let mut events = partial.watch(&format!("{path}?watch=true")).await?;
    let event = events.next().await?;
    same!(text(&event, "/object/kind"), "PartialObjectMetadata");
    same!(text(&event, "/object/metadata/name"), "a");
    Ok(())
}

async fn as_table(s: Scope) -> Result<()> {
    let path = maps(&s).await?;
    add(&s, &path, "a").await?;
    add(&s, &path, "b").await?;
    let table = s.with_header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")?;
    let mut events = table.watch(&format!("{path}?watch=true")).await?;
    let first = events.next().await?;
    same!(text(&first, "/object/kind"), "Table");
    same!(text(&first, "/object/rows/0/cells/0"), "a");
    holds!(first["object"]["columnDefinitions"].is_array(), "{first}");
    let second = events.next().await?;
    same!(second["object"]["columnDefinitions"], json!(null));
    Ok(())
}

async fn deleted_has_last_state(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let made = s.post(&format!("{ns}/configmaps"), &config_map("a")).await?.code(201)?;
    let mut events = s
        .watch(&format!(
            "{ns}/configmaps?watch=true&fieldSelector=metadata.name%3Da&resourceVersion={}",
            revision(&made)
        ))
        .await?;
    s.delete(&format!("{ns}/configmaps/a")).await?.ok()?;
    let event = events.next().await?;
    same!(text(&event, "/type"), "DELETED");
    same!(event["object"]["data"], made["data"]);
    holds!(revision(&event["object"]).parse::<u64>()? > revision(&made).parse()?, "{event}");
    Ok(())
}

async fn old_watch_path(s: Scope) -> Result<()> {
    let path = maps(&s).await?;
    add(&s, &path, "a").await?;
    let mut events = s.watch(&format!("/api/v1/watch/namespaces/{}/secrets", s.name())).await?;
    same!(events.next_named().await?, "ADDED a");
    add(&s, &path, "b").await?;
    let one = format!("/api/v1/watch/namespaces/{}/secrets/b", s.name());
    s.until(&format!("{path}/b?resourceVersion=0"), |answer| answer.code == 200).await?;
    same!(s.watch(&one).await?.next_named().await?, "ADDED b");
    same!(s.post(&one, &json!({})).await?.code, 405);
    Ok(())
}

async fn foreign_group(s: Scope) -> Result<()> {
    s.namespace().await?;
    same!(s.get("/apis/nowhere.example.com/v1/things?watch=true").await?.code, 404);
    Ok(())
}
