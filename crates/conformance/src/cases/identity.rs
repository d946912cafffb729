//! Who asks and what they may: tokens, reviews, roles, impersonation.

use anyhow::Result;
use base64::Engine;
use serde_json::{Value, json};

use crate::Scope;
use crate::scope::{pod, text};

cases!("identity": anonymous, bad_token, token_of_an_account, token_with_audience, token_bound_to_a_pod, token_dies_with_its_pod, token_too_short, token_review_of_nonsense, forbidden_message, cluster_forbidden_message, role_allows, cluster_role_in_a_namespace, resource_names, subresource_is_apart, impersonation, impersonation_refused, impersonation_constrained,
    subject_access_review, self_subject_access_review, review_needs_attributes, escalation_refused, bad_role, role_ref_is_fixed, account_token_missing, self_subject_review, group_of_accounts, non_resource_rules);

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

async fn account(s: &Scope, name: &str) -> Result<Scope> {
    let ns = format!("/api/v1/namespaces/{}", s.name());
    s.post(&format!("{ns}/serviceaccounts"), &json!({"metadata": {"name": name}})).await?.code(201)?;
    let token =
        s.post(&format!("{ns}/serviceaccounts/{name}/token"), &json!({"spec": {}})).await?.code(201)?;
    s.with_token(&text(&token, "/status/token"))
}

async fn allow(s: &Scope, name: &str, rules: Value) -> Result<()> {
    let path = format!("{RBAC}/namespaces/{}", s.name());
    s.post(&format!("{path}/roles"), &json!({"metadata": {"name": name}, "rules": rules}))
        .await?
        .code(201)?;
    let binding = json!({"metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}, "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": s.name()}]});
    s.post(&format!("{path}/rolebindings"), &binding).await?.code(201)?;
    Ok(())
}

fn claims(token: &str) -> Value {
    let part = token.split('.').nth(1).unwrap_or_default();
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(part).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

async fn anonymous(s: Scope) -> Result<()> {
    let answer = s.anonymous().get("/api/v1/namespaces/default/secrets").await?;
    holds!(answer.code == 401 || answer.code == 403, "{answer}");
    same!(s.anonymous().get("/livez").await?.code, 200);
    Ok(())
}

async fn bad_token(s: Scope) -> Result<()> {
    s.with_token("nonsense")?.get("/api/v1/namespaces").await?.refused(
        401,
        "Unauthorized",
        "Unauthorized",
    )?;
    Ok(())
}

async fn review(s: &Scope, token: &str, audiences: Value) -> Result<Value> {
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token, "audiences": audiences}});
    s.post("/apis/authentication.k8s.io/v1/tokenreviews", &body).await?.code(201)
}

async fn token_of_an_account(s: Scope) -> Result<()> {
    let ns = s.pod_namespace().await?;
    let made = s
        .post(&format!("{ns}/serviceaccounts/default/token"), &json!({"spec": {"expirationSeconds": 600}}))
        .await?
        .code(201)?;
    same!((&made["kind"], &made["apiVersion"]), (&json!("TokenRequest"), &json!("authentication.k8s.io/v1")));
    same!(made["spec"]["expirationSeconds"], 600);
    let token = text(&made, "/status/token");
    let claims = claims(&token);
    same!(claims["sub"], format!("system:serviceaccount:{}:default", s.name()));
    same!(claims["kubernetes.io"]["namespace"], s.name());
    same!(claims["exp"].as_i64().unwrap_or(0) - claims["iat"].as_i64().unwrap_or(0), 600);
    let seen = review(&s, &token, json!(null)).await?;
    same!(seen["status"]["authenticated"], true);
    same!(seen["status"]["user"]["username"], format!("system:serviceaccount:{}:default", s.name()));
    same!(
        seen["status"]["user"]["groups"],
        json!([
            "system:serviceaccounts",
            format!("system:serviceaccounts:{}", s.name()),
            "system:authenticated"
        ])
    );
    Ok(())
}

async fn token_with_audience(s: Scope) -> Result<()> {
    let ns = s.pod_namespace().await?;
    let made = s
        .post(
            &format!("{ns}/serviceaccounts/default/token"),
            &json!({"spec": {"audiences": ["terrane", "other"]}}),
        )
        .await?
        .code(201)?;
    let token = text(&made, "/status/token");
    same!(claims(&token)["aud"], json!(["terrane", "other"]));
    let seen = review(&s, &token, json!(["terrane", "third"])).await?;
    same!(
        (&seen["status"]["authenticated"], &seen["status"]["audiences"]),
        (&json!(true), &json!(["terrane"]))
    );
    let elsewhere = review(&s, &token, json!(["third"])).await?;
    same!(elsewhere["status"].get("authenticated"), None);
    holds!(elsewhere["status"]["error"].is_string(), "{elsewhere}");
    s.with_token(&token)?.get("/api/v1/namespaces").await?.refused(401, "Unauthorized", "Unauthorized")?;
    Ok(())
}

async fn bound_token(s: &Scope) -> Result<(String, Value, String)> {
    let ns = s.pod_namespace().await?;
    let made = s.post(&format!("{ns}/pods"), &pod("p")).await?.code(201)?;
    let request = json!({"spec": {"audiences": ["x"], "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": made["metadata"]["uid"]}}});
    let token = s.post(&format!("{ns}/serviceaccounts/default/token"), &request).await?.code(201)?;
    Ok((ns, made, text(&token, "/status/token")))
}

async fn token_bound_to_a_pod(s: Scope) -> Result<()> {
    let (ns, made, token) = bound_token(&s).await?;
    let uid = text(&made, "/metadata/uid");
    same!(claims(&token)["kubernetes.io"]["pod"], json!({"name": "p", "uid": uid}));
    let seen = review(&s, &token, json!(["x"])).await?;
    let extra = &seen["status"]["user"]["extra"];
    same!(extra["authentication.kubernetes.io/pod-name"], json!(["p"]));
    same!(extra["authentication.kubernetes.io/pod-uid"], json!([uid]));
    let request =
        json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "other"}}});
    let message = "Operation cannot be fulfilled on Pod \"p\": the UID in the bound object reference (other) does not match the UID in record. The object might have been deleted and then recreated";
    s.post(&format!("{ns}/serviceaccounts/default/token"), &request)
        .await?
        .refused(409, "Conflict", message)?;
    Ok(())
}

async fn token_dies_with_its_pod(s: Scope) -> Result<()> {
    let (ns, _, token) = bound_token(&s).await?;
    same!(review(&s, &token, json!(["x"])).await?["status"]["authenticated"], true);
    s.delete_with(&format!("{ns}/pods/p"), &json!({"gracePeriodSeconds": 0})).await?.ok()?;
    let limit = std::time::Instant::now() + crate::scope::LIMIT;
    while review(&s, &token, json!(["x"])).await?["status"]["authenticated"] == true {
        holds!(std::time::Instant::now() < limit, "the token outlives its pod");
        tokio::task::yield_now().await;
    }
    Ok(())
}

async fn token_too_short(s: Scope) -> Result<()> {
    let ns = s.pod_namespace().await?;
    s.post(&format!("{ns}/serviceaccounts/default/token"), &json!({"spec": {"expirationSeconds": 5}})).await?
        .refused(422, "Invalid", "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 5: may not specify a duration less than 10 minutes")?;
    Ok(())
}

async fn token_review_of_nonsense(s: Scope) -> Result<()> {
    let seen = review(&s, "nonsense", json!(null)).await?;
    same!(seen["status"].get("authenticated"), None);
    same!(seen["status"]["user"], json!({}));
    Ok(())
}

async fn forbidden_message(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let weak = account(&s, "weak").await?;
    let user = format!("system:serviceaccount:{}:weak", s.name());
    let name = s.name();
    let status = weak.get(&format!("{ns}/secrets/x")).await?.refused(403, "Forbidden", &format!("secrets \"x\" is forbidden: User \"{user}\" cannot get resource \"secrets\" in API group \"\" in the namespace \"{name}\""))?;
    same!(status["details"], json!({"name": "x", "kind": "secrets"}));
    weak.get(&format!("{ns}/secrets")).await?.refused(403, "Forbidden", &format!("secrets is forbidden: User \"{user}\" cannot list resource \"secrets\" in API group \"\" in the namespace \"{name}\""))?;
    weak.get(&format!("/apis/batch/v1/namespaces/{name}/jobs?watch=true")).await?.refused(403, "Forbidden", &format!("jobs.batch is forbidden: User \"{user}\" cannot watch resource \"jobs\" in API group \"batch\" in the namespace \"{name}\""))?;
    weak.get(&format!("{ns}/pods/x/log")).await?.refused(403, "Forbidden", &format!("pods \"x\" is forbidden: User \"{user}\" cannot get resource \"pods/log\" in API group \"\" in the namespace \"{name}\""))?;
    Ok(())
}

async fn cluster_forbidden_message(s: Scope) -> Result<()> {
    s.namespace().await?;
    let weak = account(&s, "weak").await?;
    let user = format!("system:serviceaccount:{}:weak", s.name());
    weak.get("/api/v1/nodes").await?.refused(403, "Forbidden", &format!("nodes is forbidden: User \"{user}\" cannot list resource \"nodes\" in API group \"\" at the cluster scope"))?;
    weak.get("/metrics").await?.refused(
        403,
        "Forbidden",
        &format!("forbidden: User \"{user}\" cannot get path \"/metrics\""),
    )?;
    same!(weak.get("/api/v1").await?.code, 200);
    same!(weak.get("/version").await?.code, 200);
    Ok(())
}

/// Roles reach the authorizer a moment after they are written.
async fn until_code(s: &Scope, path: &str, code: u16) -> Result<()> {
    s.until(path, |answer| answer.code == code).await.map(drop)
}

async fn role_allows(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let user = account(&s, "u").await?;
    allow(&s, "u", json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]))
        .await?;
    until_code(&user, &format!("{ns}/configmaps"), 200).await?;
    same!(user.get(&format!("{ns}/configmaps?watch=true")).await?.code, 403);
    same!(user.delete(&format!("{ns}/configmaps/x")).await?.code, 403);
    same!(user.get("/api/v1/configmaps").await?.code, 403);
    s.delete(&format!("{RBAC}/namespaces/{}/rolebindings/u", s.name())).await?.ok()?;
    until_code(&user, &format!("{ns}/configmaps"), 403).await
}

async fn cluster_role_in_a_namespace(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let user = account(&s, "u").await?;
    let role = s.name().to_owned();
    s.post(&format!("{RBAC}/clusterroles"), &json!({"metadata": {"name": role}, "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]}]})).await?.code(201)?;
    s.post(&format!("{RBAC}/namespaces/{role}/rolebindings"), &json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}, "subjects": [{"kind": "ServiceAccount", "name": "u", "namespace": role}]})).await?.code(201)?;
    until_code(&user, &format!("{ns}/secrets"), 200).await?;
    same!(user.get("/api/v1/namespaces/default/secrets").await?.code, 403);
    s.delete(&format!("{RBAC}/clusterroles/{role}")).await?.ok()?;
    Ok(())
}

async fn resource_names(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let user = account(&s, "u").await?;
    allow(&s, "u", json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["mine"], "verbs": ["get", "list"]}])).await?;
    until_code(&user, &format!("{ns}/secrets/mine"), 404).await?;
    same!(user.get(&format!("{ns}/secrets/yours")).await?.code, 403);
    same!(user.get(&format!("{ns}/secrets")).await?.code, 403);
    same!(user.get(&format!("{ns}/secrets?fieldSelector=metadata.name%3Dmine")).await?.code, 200);
    Ok(())
}

async fn subresource_is_apart(s: Scope) -> Result<()> {
    let ns = s.pod_namespace().await?;
    let user = account(&s, "u").await?;
    s.post(&format!("{ns}/pods"), &pod("p")).await?.code(201)?;
    allow(&s, "u", json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "patch"]}])).await?;
    until_code(&user, &format!("{ns}/pods/p"), 200).await?;
    same!(user.patch(&format!("{ns}/pods/p/status"), crate::scope::MERGE, &json!({})).await?.code, 403);
    Ok(())
}

async fn impersonation(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let jane = s.with_header("impersonate-user", "jane")?.with_header("impersonate-group", "devs")?;
    jane.get(&format!("{ns}/secrets")).await?.refused(403, "Forbidden", &format!("secrets is forbidden: User \"jane\" cannot list resource \"secrets\" in API group \"\" in the namespace \"{}\"", s.name()))?;
    let seen = jane
        .post(
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            &json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}),
        )
        .await?
        .code(201)?;
    same!(
        seen["status"]["userInfo"],
        json!({"username": "jane", "groups": ["devs", "system:authenticated"]})
    );
    Ok(())
}

async fn impersonation_refused(s: Scope) -> Result<()> {
    s.namespace().await?;
    let weak = account(&s, "weak").await?;
    let user = format!("system:serviceaccount:{}:weak", s.name());
    weak.with_header("impersonate-user", "jane")?.get("/api/v1/namespaces").await?
        .refused(403, "Forbidden", &format!("namespaces is forbidden: User \"{user}\" cannot impersonate-on:user-info:list resource \"namespaces\" in API group \"\" at the cluster scope"))?;
    Ok(())
}

async fn impersonation_constrained(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let agent = account(&s, "agent").await?;
    let name = s.name().to_owned();
    s.post(&format!("{RBAC}/clusterroles"), &json!({"metadata": {"name": name}, "rules": [
        {"apiGroups": ["authentication.k8s.io"], "resources": ["users"], "resourceNames": ["jane"], "verbs": ["impersonate:user-info"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["impersonate-on:user-info:list"]},
    ]})).await?.code(201)?;
    s.post(&format!("{RBAC}/clusterrolebindings"), &json!({"metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}, "subjects": [{"kind": "ServiceAccount", "name": "agent", "namespace": name}]})).await?.code(201)?;
    let jane = agent.with_header("impersonate-user", "jane")?;
    let maps = format!("{ns}/configmaps");
    // The right reaches the server's cache a moment later; then it is jane who lacks one.
    let wanted = format!(
        "configmaps is forbidden: User \"jane\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"{name}\""
    );
    jane.until(&maps, |answer| answer.json().is_ok_and(|status| text(&status, "/message") == wanted)).await?;
    let user = format!("system:serviceaccount:{name}:agent");
    jane.get(&format!("{maps}/x")).await?.refused(403, "Forbidden", &format!("configmaps \"x\" is forbidden: User \"{user}\" cannot impersonate-on:user-info:get resource \"configmaps\" in API group \"\" in the namespace \"{name}\""))?;
    agent.with_header("impersonate-user", "joe")?.get(&maps).await?.refused(403, "Forbidden", &format!("users.authentication.k8s.io \"joe\" is forbidden: User \"{user}\" cannot impersonate:user-info resource \"users\" in API group \"authentication.k8s.io\" at the cluster scope"))?;
    s.delete(&format!("{RBAC}/clusterrolebindings/{name}")).await?.ok()?;
    s.delete(&format!("{RBAC}/clusterroles/{name}")).await?.ok()?;
    Ok(())
}

async fn subject_access_review(s: Scope) -> Result<()> {
    s.namespace().await?;
    account(&s, "u").await?;
    allow(&s, "u", json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}])).await?;
    let ask = |verb: &str| json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {"user": format!("system:serviceaccount:{}:u", s.name()), "resourceAttributes": {"namespace": s.name(), "verb": verb, "resource": "configmaps"}}});
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let limit = std::time::Instant::now() + crate::scope::LIMIT;
    let allowed = loop {
        let answer = s.post(path, &ask("get")).await?.code(201)?;
        if answer["status"]["allowed"] == true {
            break answer;
        }
        holds!(std::time::Instant::now() < limit, "{answer}");
        tokio::task::yield_now().await;
    };
    same!(
        allowed["status"]["reason"],
        format!("RBAC: allowed by RoleBinding \"u/{0}\" of Role \"u\" to ServiceAccount \"u/{0}\"", s.name())
    );
    let refused = s.post(path, &ask("list")).await?.code(201)?;
    same!(refused["status"], json!({"allowed": false}));
    Ok(())
}

async fn self_subject_access_review(s: Scope) -> Result<()> {
    s.namespace().await?;
    let weak = account(&s, "weak").await?;
    let ask = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": {"namespace": s.name(), "verb": "get", "resource": "pods"}}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    same!(s.post(path, &ask).await?.code(201)?["status"]["allowed"], true);
    same!(weak.post(path, &ask).await?.code(201)?["status"], json!({"allowed": false}));
    Ok(())
}

async fn review_needs_attributes(s: Scope) -> Result<()> {
    let answer =
        s.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &json!({"spec": {}})).await?;
    answer.refused(422, "Invalid", ".authorization.k8s.io \"\" is invalid: spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified")?;
    Ok(())
}

async fn escalation_refused(s: Scope) -> Result<()> {
    s.namespace().await?;
    let user = account(&s, "u").await?;
    allow(&s, "u", json!([{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["get", "list", "create"]}])).await?;
    let roles = format!("{RBAC}/namespaces/{}/roles", s.name());
    until_code(&user, &roles, 200).await?;
    let name = s.name();
    let message = format!(
        "roles.rbac.authorization.k8s.io \"more\" is forbidden: user \"system:serviceaccount:{name}:u\" (groups=[\"system:serviceaccounts\" \"system:serviceaccounts:{name}\" \"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n{{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}}"
    );
    user.post(&roles, &json!({"metadata": {"name": "more"}, "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]})).await?.refused(403, "Forbidden", &message)?;
    Ok(())
}

async fn bad_role(s: Scope) -> Result<()> {
    s.namespace().await?;
    let roles = format!("{RBAC}/namespaces/{}/roles", s.name());
    s.post(&roles, &json!({"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["pods"]}]})).await?
        .refused(422, "Invalid", "Role.rbac.authorization.k8s.io \"r\" is invalid: rules[0].verbs: Required value: verbs must contain at least one value")?;
    Ok(())
}

async fn role_ref_is_fixed(s: Scope) -> Result<()> {
    s.namespace().await?;
    account(&s, "u").await?;
    allow(&s, "u", json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}])).await?;
    let path = format!("{RBAC}/namespaces/{}/rolebindings/u", s.name());
    s.patch(&path, crate::scope::MERGE, &json!({"roleRef": {"name": "other"}})).await?
        .refused(422, "Invalid", "RoleBinding.rbac.authorization.k8s.io \"u\" is invalid: roleRef: Invalid value: {\"APIGroup\":\"rbac.authorization.k8s.io\",\"Kind\":\"Role\",\"Name\":\"other\"}: cannot change roleRef")?;
    Ok(())
}

async fn account_token_missing(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.post(&format!("{ns}/serviceaccounts/none/token"), &json!({"spec": {}})).await?.refused(
        404,
        "NotFound",
        "serviceaccounts \"none\" not found",
    )?;
    Ok(())
}

async fn self_subject_review(s: Scope) -> Result<()> {
    s.namespace().await?;
    let weak = account(&s, "weak").await?;
    let seen = weak
        .post(
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            &json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}),
        )
        .await?
        .code(201)?;
    same!(seen["status"]["userInfo"]["username"], format!("system:serviceaccount:{}:weak", s.name()));
    holds!(seen["status"]["userInfo"]["uid"].is_string(), "{seen}");
    Ok(())
}

async fn group_of_accounts(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let user = account(&s, "u").await?;
    let path = format!("{RBAC}/namespaces/{}", s.name());
    s.post(&format!("{path}/roles"), &json!({"metadata": {"name": "r"}, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["list"]}]})).await?.code(201)?;
    s.post(&format!("{path}/rolebindings"), &json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}, "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": format!("system:serviceaccounts:{}", s.name())}]})).await?.code(201)?;
    until_code(&user, &format!("{ns}/secrets"), 200).await
}

async fn non_resource_rules(s: Scope) -> Result<()> {
    s.namespace().await?;
    let user = account(&s, "u").await?;
    let name = s.name().to_owned();
    s.post(
        &format!("{RBAC}/clusterroles"),
        &json!({"metadata": {"name": name}, "rules": [{"nonResourceURLs": ["/secret/*"], "verbs": ["get"]}]}),
    )
    .await?
    .code(201)?;
    s.post(&format!("{RBAC}/clusterrolebindings"), &json!({"metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}, "subjects": [{"kind": "ServiceAccount", "name": "u", "namespace": name}]})).await?.code(201)?;
    until_code(&user, "/secret/path", 404).await?;
    same!(user.get("/other/path").await?.code, 403);
    s.delete(&format!("{RBAC}/clusterrolebindings/{name}")).await?.ok()?;
    s.delete(&format!("{RBAC}/clusterroles/{name}")).await?.ok()?;
    Ok(())
}
