//! Whom a token proves, to whom, and until when.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::TokenRequest;
use serde_json::{Value, json};

use super::{put, remove, store_with};
use crate::auth::tokens::{self, Tokens};
use crate::auth::{Authenticator, Refusal, reviews};
use crate::store::{Snapshot, Store};

fn new_tokens() -> Tokens {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    Tokens::new(&key.serialize_pem(), &key.public_key_pem()).unwrap()
}

fn at(minutes: i64) -> Timestamp {
    "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_mins(minutes)
}

fn pod(uid: &str) -> Value {
    json!({"metadata": {"namespace": "build", "name": "p", "uid": uid}, "spec": {"serviceAccountName": "runner", "nodeName": "n"}})
}

async fn cluster() -> (tempfile::TempDir, Store) {
    store_with(&[
        ("/serviceaccounts", json!({"metadata": {"namespace": "build", "name": "runner", "uid": "sa-1"}})),
        ("/pods", pod("pod-1")),
        ("/nodes", json!({"metadata": {"name": "n", "uid": "node-1"}})),
        ("/secrets", json!({"metadata": {"namespace": "build", "name": "s", "uid": "secret-1"}})),
    ])
    .await
}

fn request(tokens: &Tokens, snapshot: &Snapshot, spec: Value) -> Result<TokenRequest, Refusal> {
    let request = serde_json::from_value(json!({"spec": spec})).unwrap();
    tokens.request(snapshot, "build", "runner", request, at(0))
}

fn token_of(request: TokenRequest) -> String {
    request.status.unwrap().token
}

#[tokio::test]
async fn a_token_proves_its_account_to_its_audiences_until_it_expires() {
    let (_directory, store) = cluster().await;
    let tokens = new_tokens();
    let answer = request(&tokens, &store.snapshot(), json!({"audiences": ["a", "b"]})).unwrap();
    assert_eq!(answer.spec.expiration_seconds, Some(3600));
    assert_eq!(answer.metadata.uid.as_deref(), Some("sa-1"));
    assert_eq!(answer.status.as_ref().unwrap().expiration_timestamp.0, at(60));
    let token = token_of(answer);
    let check = |audiences: &[&str], now, expected: Result<&[&str], &str>| {
        let wanted: Vec<String> = audiences.iter().map(|&audience| audience.to_owned()).collect();
        let answer = tokens.verify(&store.snapshot(), &token, &wanted, now);
        let answer = answer.map(|proved| {
            assert_eq!(&*proved.identity.user, "system:serviceaccount:build:runner");
            assert_eq!(&*proved.identity.uid, "sa-1");
            proved.audiences
        });
        let answer = answer.map_err(|error| error.to_string());
        let expected =
            expected.map(|list| list.iter().map(|&one| one.to_owned()).collect()).map_err(str::to_owned);
        assert_eq!(answer, expected);
    };
    check(&["b", "c"], at(0), Ok(&["b"]));
    check(&["a", "b"], at(59), Ok(&["a", "b"]));
    check(&["c"], at(0), Err(r#"token audiences ["a" "b"] is invalid for the target audiences ["c"]"#));
    check(&["a"], at(62), Err("service account token has expired"));
    check(&["a"], at(-5), Err("service account token is not valid yet"));
    let foreign = new_tokens();
    let error = foreign.verify(&store.snapshot(), &token, &["a".to_owned()], at(0)).unwrap_err();
    assert_eq!(error, tokens::Error::Malformed, "signed with another key");
    let mut parts: Vec<&str> = token.split('.').collect();
    let none = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0";
    parts[0] = none;
    parts[2] = "";
    let error = tokens.verify(&store.snapshot(), &parts.join("."), &["a".to_owned()], at(0)).unwrap_err();
    assert_eq!(error, tokens::Error::Malformed, "no signature");
}

#[tokio::test]
async fn a_bound_token_dies_with_what_it_is_bound_to() {
    let (_directory, store) = cluster().await;
    let tokens = new_tokens();
    let bind = |kind: &str, name: &str| {
        let spec =
            json!({"audiences": ["a"], "boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name}});
        token_of(request(&tokens, &store.snapshot(), spec).unwrap())
    };
    let verify = |token: &str| {
        let answer = tokens.verify(&store.snapshot(), token, &["a".to_owned()], at(0));
        answer
            .map(|proved| proved.identity.extra.values().flatten().cloned().collect::<Vec<_>>())
            .map_err(|error| error.to_string())
    };
    let (to_pod, to_secret, to_node, free) = (
        bind("Pod", "p"),
        bind("Secret", "s"),
        bind("Node", "n"),
        token_of(request(&tokens, &store.snapshot(), json!({"audiences": ["a"]})).unwrap()),
    );
    let extra = verify(&to_pod).unwrap();
    assert_eq!(extra[1..], ["n", "node-1", "p", "pod-1"], "{extra:?}");
    assert!(extra[0].starts_with("JTI="), "{extra:?}");
    assert_eq!(verify(&to_node).unwrap()[1..], ["n", "node-1"]);
    assert!(verify(&to_secret).is_ok());
    put(&store, "/pods", pod("pod-2")).await;
    assert_eq!(
        verify(&to_pod),
        Err("pod UID (pod-2) does not match service account pod ref claim (pod-1)".into())
    );
    remove(&store, "/pods", pod("pod-2")).await;
    remove(&store, "/nodes", json!({"metadata": {"name": "n"}})).await;
    remove(&store, "/secrets", json!({"metadata": {"namespace": "build", "name": "s"}})).await;
    for token in [&to_pod, &to_node, &to_secret] {
        assert_eq!(verify(token), Err("service account token has been invalidated".into()));
    }
    assert!(verify(&free).is_ok());
    put(
        &store,
        "/serviceaccounts",
        json!({"metadata": {"namespace": "build", "name": "runner", "uid": "sa-2"}}),
    )
    .await;
    assert_eq!(verify(&free), Err("service account UID (sa-2) does not match claim (sa-1)".into()));
    remove(&store, "/serviceaccounts", json!({"metadata": {"namespace": "build", "name": "runner"}})).await;
    assert_eq!(verify(&free), Err(r#"serviceaccounts "runner" not found"#.into()));
}

#[tokio::test]
async fn a_token_request_that_cannot_be_met_says_why() {
    let (_directory, store) = cluster().await;
    let tokens = new_tokens();
    put(&store, "/pods", json!({"metadata": {"namespace": "build", "name": "q", "uid": "u"}, "spec": {"serviceAccountName": "default"}})).await;
    let check = |spec: Value, code: u16, message: &str| {
        let refusal = request(&tokens, &store.snapshot(), spec).unwrap_err();
        assert_eq!((refusal.code(), refusal.to_string().as_str()), (code, message));
    };
    let bound = |api_version: &str, kind: &str, name: &str, uid: &str| json!({"audiences": [], "boundObjectRef": {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid}});
    check(
        json!({"audiences": [], "expirationSeconds": 599}),
        422,
        r#"TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes"#,
    );
    check(
        json!({"audiences": [], "expirationSeconds": (1i64 << 32) + 1}),
        422,
        r#"TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 4294967297: may not specify a duration larger than 2^32 seconds"#,
    );
    check(bound("v1", "Pod", "none", ""), 404, r#"pods "none" not found"#);
    check(
        bound("v1", "Pod", "q", ""),
        400,
        r#"cannot bind token for serviceaccount "runner" to pod running with different serviceaccount name."#,
    );
    check(
        bound("apps/v1", "Deployment", "d", ""),
        400,
        "cannot bind token to object of type apps/v1, Kind=Deployment",
    );
    check(
        bound("v1", "Secret", "s", "other"),
        409,
        r#"Operation cannot be fulfilled on Secret "s": the UID in the bound object reference (other) does not match the UID in record. The object might have been deleted and then recreated"#,
    );
    let elsewhere =
        tokens.request(&store.snapshot(), "build", "nobody", TokenRequest::default(), at(0)).unwrap_err();
    assert_eq!(elsewhere.to_string(), r#"serviceaccounts "nobody" not found"#);
}

#[tokio::test]
async fn a_token_review_tells_whom_a_token_proves_and_to_whom() {
    let (_directory, store) = cluster().await;
    let tokens = Arc::new(new_tokens());
    let spec = json!({"audiences": ["terrane-datastore"], "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p"}});
    let token = token_of(request(&tokens, &store.snapshot(), spec).unwrap());
    let authenticator = Authenticator::new("s3cret", tokens, store);
    let review = |token: &str, audiences: &[&str]| {
        let review =
            serde_json::from_value(json!({"spec": {"token": token, "audiences": audiences}})).unwrap();
        serde_json::to_value(reviews::token(&authenticator, review, at(0)).unwrap().status).unwrap()
    };
    let good = review(&token, &["terrane-datastore", "x"]);
    assert_eq!(good["authenticated"], true);
    assert_eq!(good["audiences"], json!(["terrane-datastore"]));
    assert_eq!(good["user"]["username"], "system:serviceaccount:build:runner");
    assert_eq!(good["user"]["extra"]["authentication.kubernetes.io/pod-uid"], json!(["pod-1"]));
    assert_eq!(
        review(&token, &[]),
        json!({"user": {}, "error": format!(
            "[invalid bearer token, token audiences [\"terrane-datastore\"] is invalid for the target audiences [\"{}\"]]", tokens::API_AUDIENCE)})
    );
    assert_eq!(review("junk", &[]), json!({"user": {}, "error": "invalid bearer token"}));
    assert_eq!(review("s3cret", &[])["user"]["groups"], json!(["system:masters", "system:authenticated"]));
    assert_eq!(
        review("s3cret", &["terrane-datastore"])["authenticated"],
        Value::Null,
        "the administrator's token is for this API alone"
    );
    let empty = serde_json::from_value(json!({"spec": {}})).unwrap();
    let refusal = reviews::token(&authenticator, empty, at(0)).unwrap_err();
    assert_eq!(
        (refusal.code(), refusal.to_string().as_str()),
        (400, "token is required for TokenReview in authentication")
    );
}
