//! What the server tells about itself, about rights and about what happened.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::program::{Kubectl, map, same};

cases!("ask": explains_built_in, explains_field, explains_custom, explains_custom_field, explains_unknown, api_resources, api_resources_of_workloads, api_resources_names, api_versions, can_i, can_i_as_another, can_i_list, can_i_list_as_another, who_am_i, who_am_i_as, impersonated_get, events, events_of_one, raw, version, cluster_health, cluster_info, services, explains_services);

async fn explains_built_in(k: Kubectl) -> Result<()> {
    let output = k.run("explain configmap").await?;
    ensure!(
        output.ok()?.starts_with("KIND:       ConfigMap\nVERSION:    v1\n\nDESCRIPTION:\n    ConfigMap holds configuration data for pods to consume.\n"),
        "{output:?}"
    );
    output.has(&["  data\t<map[string]string>\n", "  immutable\t<boolean>\n", "  metadata\t<ObjectMeta>\n"])
}

async fn explains_field(k: Kubectl) -> Result<()> {
    k.run("explain pod.spec.containers.image")
        .await?
        .has(&["KIND:       Pod\nVERSION:    v1\n\nFIELD: image <string>\n", "Container image name."])
}

async fn explains_custom(k: Kubectl) -> Result<()> {
    k.run("explain tfl").await?.has(&[
        "GROUP:      terrane.dev\nKIND:       TerraformLayer\nVERSION:    v1alpha1\n",
        "  spec\t<Object> -required-\n",
        "  status\t<Object>\n",
    ])
}

async fn explains_custom_field(k: Kubectl) -> Result<()> {
    k.run("explain terraformlayers.spec.branch").await?.prints(
        "GROUP:      terrane.dev\nKIND:       TerraformLayer\nVERSION:    v1alpha1\n\nFIELD: branch <string>\n\n\nDESCRIPTION:\n    The branch that is followed, or a full ref such as `refs/tags/v1`.\n    \n\n",
    )
}

async fn explains_unknown(k: Kubectl) -> Result<()> {
    k.run("explain tfl.spec.nope").await?.fails(1, "error: field \"nope\" does not exist\n")
}

async fn api_resources(k: Kubectl) -> Result<()> {
    let output = k.run("api-resources --api-group=terrane.dev --no-headers").await?;
    let rows: Vec<Vec<&str>> = output.ok()?.lines().map(|line| line.split_whitespace().collect()).collect();
    same(
        rows,
        [
            ["repos", "tfrepo", "terrane.dev/v1alpha1", "true", "Repo"],
            ["terraformapprovals", "tfa", "terrane.dev/v1alpha1", "true", "TerraformApproval"],
            ["terraformlayers", "tfl", "terrane.dev/v1alpha1", "true", "TerraformLayer"],
            ["terraformnotifications", "tfn", "terrane.dev/v1alpha1", "true", "TerraformNotification"],
            ["terraformrepositories", "tfr", "terrane.dev/v1alpha1", "true", "TerraformRepository"],
            ["terraformruns", "tfrun", "terrane.dev/v1alpha1", "true", "TerraformRun"],
        ],
    )
}

async fn api_resources_of_workloads(k: Kubectl) -> Result<()> {
    let output = k.run("api-resources --api-group=alustan.io --no-headers").await?;
    let rows: Vec<Vec<&str>> = output.ok()?.lines().map(|line| line.split_whitespace().collect()).collect();
    same(rows, [["terraforms", "tfw", "alustan.io/v1alpha1", "true", "Terraform"]])
}

async fn api_resources_names(k: Kubectl) -> Result<()> {
    let output = k.run("api-resources -o name --namespaced --verbs=create,watch").await?;
    output.has(&["configmaps\n", "pods\n", "secrets\n", "terraformlayers.terrane.dev\n"])?;
    let wide = k.run("api-resources -o wide --api-group=terrane.dev").await?;
    wide.has(&["create,delete,deletecollection,get,list,patch,update,watch", "terrane\n"])
        .or_else(|_| wide.has(&["delete,deletecollection,get,list,patch,create,update,watch", "terrane\n"]))
}

async fn api_versions(k: Kubectl) -> Result<()> {
    let output = k.run("api-versions").await?;
    let lines: Vec<&str> = output.ok()?.lines().collect();
    for version in
        ["v1", "apiextensions.k8s.io/v1", "authorization.k8s.io/v1", "batch/v1", "terrane.dev/v1alpha1"]
    {
        ensure!(lines.contains(&version), "{version} is missing: {output:?}");
    }
    Ok(())
}

async fn can_i(k: Kubectl) -> Result<()> {
    k.run("auth can-i create configmaps").await?.prints("yes\n")?;
    k.run("auth can-i get tfl/l").await?.prints("yes\n")
}

async fn can_i_as_another(k: Kubectl) -> Result<()> {
    let output = k.run("auth can-i create configmaps --as=nobody").await?;
    same((output.code, output.stdout.as_str()), (1, "no\n"))
}

fn reader(k: &Kubectl) -> [serde_json::Value; 2] {
    let group = "rbac.authorization.k8s.io";
    [
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": {"name": "reader"},
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}],
        }),
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": {"name": "reader"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "reader"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": k.name()}],
        }),
    ]
}

/// A list of rights, each line's words.
async fn rights(k: &Kubectl, line: &str) -> Result<Vec<Vec<String>>> {
    let output = k.run(line).await?;
    let lines = output.ok()?.lines();
    Ok(lines.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect())
}

async fn can_i_list(k: Kubectl) -> Result<()> {
    let rows = rights(&k, "auth can-i --list").await?;
    same(rows[0].join(" "), "Resources Non-Resource URLs Resource Names Verbs")?;
    ensure!(rows.iter().any(|row| row.join(" ") == "*.* [] [] [*]"), "{rows:?}");
    Ok(())
}

async fn can_i_list_as_another(k: Kubectl) -> Result<()> {
    for object in reader(&k) {
        k.create(&object).await?;
    }
    let line = format!("auth can-i --list --as={}", k.name());
    // The real server reads its rights from a cache, which the new binding reaches a moment later.
    let granted = format!("auth can-i get configmaps --as={}", k.name());
    let limit = std::time::Instant::now() + conformance::scope::LIMIT;
    while k.run(&granted).await?.code != 0 {
        ensure!(std::time::Instant::now() < limit, "the right never came");
    }
    let rows = rights(&k, &line).await?;
    ensure!(rows.iter().any(|row| row.join(" ") == "configmaps [] [] [get]"), "{rows:?}");
    ensure!(!rows.iter().any(|row| row[0] == "*.*"), "{rows:?}");
    Ok(())
}

async fn who_am_i(k: Kubectl) -> Result<()> {
    let found = k.run("auth whoami -o json").await?.json()?;
    same(&found["kind"], &json!("SelfSubjectReview"))?;
    let groups = found["status"]["userInfo"]["groups"].as_array().cloned().unwrap_or_default();
    ensure!(groups.contains(&json!("system:masters")), "{found}");
    ensure!(groups.contains(&json!("system:authenticated")), "{found}");
    k.run("auth whoami").await?.has(&["ATTRIBUTE", "VALUE", "Username", "Groups"])
}

async fn who_am_i_as(k: Kubectl) -> Result<()> {
    let found = k.run("auth whoami -o json --as=jane --as-group=team").await?.json()?;
    same(&found["status"]["userInfo"]["username"], &json!("jane"))?;
    same(&found["status"]["userInfo"]["groups"], &json!(["team", "system:authenticated"]))
}

async fn impersonated_get(k: Kubectl) -> Result<()> {
    k.run("get secrets --as=nobody").await?.fails(
        1,
        "Error from server (Forbidden): secrets is forbidden: User \"nobody\" cannot list resource \"secrets\" in API group \"\" in the namespace \"NS\"\n",
    )
}

fn event(k: &Kubectl, name: &str, object: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": name},
        "involvedObject": {"apiVersion": "v1", "kind": "ConfigMap", "name": object, "namespace": k.name()},
        "type": "Normal", "reason": "Seen", "message": format!("saw {object}"),
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z", "count": 1,
        "source": {"component": "test"},
    })
}

async fn events(k: Kubectl) -> Result<()> {
    k.create(&event(&k, "one", "a")).await?;
    k.run("events").await?.has(&[
        "LAST SEEN",
        "TYPE",
        "REASON",
        "OBJECT",
        "MESSAGE",
        "ConfigMap/a",
        "saw a",
    ])?;
    k.run("get events --no-headers").await?.has(&["Normal", "Seen", "configmap/a", "saw a\n"])
}

async fn events_of_one(k: Kubectl) -> Result<()> {
    k.create(&map("a", json!({}))).await?;
    k.create(&event(&k, "one", "a")).await?;
    k.create(&event(&k, "two", "b")).await?;
    let output = k.run("events --for configmap/a").await?;
    output.has(&["saw a"])?;
    ensure!(!output.stdout.contains("saw b"), "{output:?}");
    Ok(())
}

async fn raw(k: Kubectl) -> Result<()> {
    let found = k.words(&["get", "--raw", &k.path()]).await?.json()?;
    same(&found["metadata"]["name"], &json!("NS"))
}

async fn version(k: Kubectl) -> Result<()> {
    let found = k.run("version -o json").await?.json()?;
    same(&found["serverVersion"]["major"], &json!("1"))?;
    same(&found["serverVersion"]["minor"], &found["clientVersion"]["minor"])
}

async fn cluster_health(k: Kubectl) -> Result<()> {
    k.run("get --raw /readyz").await?.prints("ok")?;
    k.run("get --raw /livez").await?.prints("ok")
}

async fn cluster_info(k: Kubectl) -> Result<()> {
    let output = k.run("cluster-info").await?;
    // The address is the server's own, and kubectl colours its words even where nobody sees them.
    output.has(&["Kubernetes control plane", " is running at ", "https://127.0.0.1:", "cluster-info dump"])
}

/// Nobody made one here, and that is what both say.
async fn services(k: Kubectl) -> Result<()> {
    for line in ["get services", "get svc -o wide", "get svc -l app=x"] {
        let output = k.run(line).await?;
        output.prints("")?;
        same(output.stderr.as_str(), "No resources found in NS namespace.\n")?;
    }
    let all = k.run("get services --all-namespaces -o json").await?.json()?;
    same(&all["kind"], &json!("List"))?;
    k.run("get service s").await?.fails(1, "Error from server (NotFound): services \"s\" not found\n")
}

async fn explains_services(k: Kubectl) -> Result<()> {
    k.run("explain service.spec.clusterIP")
        .await?
        .has(&["KIND:       Service\nVERSION:    v1\n\nFIELD: clusterIP <string>\n"])
}
