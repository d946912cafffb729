//! Stacks of a real `terrane up` with the real tool: the example's tour by curl alone, and a state in a bucket, whose workspace goes with
//! its stack.

use std::path::Path;
use std::process::Command;

use api::{TerraformLayer, label};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{ListParams, PostParams};
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::s3::S3Server;

use crate::harness::{BINARY, Gate, Terrane, declare_repository, is, layer_until, until};
use crate::people::{Doors, finished};

fn tour() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/seeds/004/tour.sh")
}

fn token(doors: &Doors, name: &str) -> String {
    let scopes = ["token", "create", name, "--scope", "read,write", "--expires", "1h"];
    doors.run(&scopes).with_code(0).out.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn stacks_are_made_changed_and_deleted_by_curl_alone() {
    let doors = Doors::open().await;
    let program = Path::new(BINARY).parent().unwrap().display().to_string();
    let mut shell = Command::new("bash");
    shell.args(["-c", "PATH=\"$PROGRAM:$PATH\" exec bash \"$TOUR\""]);
    shell.env("PROGRAM", program).env("TOUR", tour()).env("KUBECONFIG", doors.kubeconfig());
    shell.env("URL", &doors.service).env("TOKEN", token(&doors, "tour"));
    let done = finished(shell.output().unwrap()).with_code(0);
    let done = done
        .says(r#"{"name":"machine","default":true,"variables":["count_of","name","password"]}"#)
        .says("/requests/create: succeeded")
        .says(r#""login":"(sensitive value)","machines":["web-1"],"workspace":"stack-"#)
        .says(r#""machines":["db-1","db-2"]"#)
        .says(r#""password":{"value":"(sensitive value)","sensitive":true}"#)
        .says(r#"["web-1","web-2","web-3"]"#)
        .says(r#"{"status":422,"errors":["count_of must be a number, and is text","nam is no variable of the template's code; did you mean name?"]}"#)
        .says(r#""state":"ready","labels":{"tour":"web"}"#)
        .says("event: end")
        .says(": 404\n");
    done.keeps_quiet_about("hunter2");
    // Nothing is left of them, and their Secrets went along.
    let stacks = ListParams::default().labels(label::STACK_TEMPLATE);
    let layers = Api::<TerraformLayer>::namespaced(doors.client.clone(), "default");
    assert!(layers.list(&stacks).await.unwrap().items.is_empty());
    let secrets = Api::<Secret>::namespaced(doors.client.clone(), "default");
    let of_layers = ListParams::default().labels(label::LAYER);
    until("the Secrets are collected", || async {
        secrets.list(&of_layers).await.ok()?.items.is_empty().then_some(())
    })
    .await;
    doors.close().await;
}

const CODE: &str = "variable \"word\" {}\nresource \"terraform_data\" \"x\" { input = \"${terraform.workspace} ${var.word}\" }\n";

/// As code with a bucket of its own has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_in_a_bucket_goes_with_its_stack() {
    let server = S3Server::shared().await;
    let doors = Doors::open().await;
    let _source = declare_repository(&doors.client, "compute", &[("vm/main.tf", CODE)]).await;
    let login: std::collections::BTreeMap<String, String> =
        server.environment(server.address()).into_iter().collect();
    let post = PostParams::default();
    let secret = json!({ "metadata": { "name": "cloud" }, "stringData": {
        "AWS_ACCESS_KEY_ID": login["AWS_ACCESS_KEY_ID"], "AWS_SECRET_ACCESS_KEY": login["AWS_SECRET_ACCESS_KEY"],
    } });
    let secrets = Api::<Secret>::namespaced(doors.client.clone(), "default");
    secrets.create(&post, &serde_json::from_value(secret).unwrap()).await.unwrap();
    let template = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": "vm" },
        "spec": {
            "repository": { "name": "compute" }, "branch": "main", "path": "vm", "template": {},
            "backend": {
                "provider": "s3", "bucket": server.bucket(), "key": "stacks/vm.tfstate", "region": "us-east-1",
                "endpoint": format!("http://{}", server.address()), "use_path_style": true,
                "skip_credentials_validation": true, "skip_requesting_account_id": true,
                "skip_metadata_api_check": true, "skip_region_validation": true,
                "credentials": { "secretName": "cloud" },
            },
        },
    });
    let layers = Api::<TerraformLayer>::namespaced(doors.client.clone(), "default");
    layers.create(&post, &serde_json::from_value(template).unwrap()).await.unwrap();
    let token = token(&doors, "bucket");
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let at = |path: &str| format!("{}{path}", doors.service);
    let body = json!({ "template": "vm", "variables": { "word": "here" } });
    // Its variables are known a moment after it was made.
    let made: Value = until("a stack is made", || async {
        let answer = http.post(at("/tfstacks")).bearer_auth(&token).json(&body).send().await.ok()?;
        if answer.status() == 503 { None } else { answer.json().await.ok() }
    })
    .await;
    let id = made["stack"]["id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    let get = async |path: String| http.get(at(&path)).bearer_auth(&token).send().await.unwrap();
    until("it is applied", || async {
        let request: Value = get(format!("/tfstacks/{id}/requests/create")).await.json().await.unwrap();
        assert_ne!(request["state"], "failed", "{request}");
        (request["state"] == "succeeded").then_some(())
    })
    .await;
    let object = server.files(&format!("env:/{id}/stacks/vm.tfstate"));
    let state: Value = serde_json::from_slice(&std::fs::read(&object).unwrap()).unwrap();
    let made = &state["resources"][0]["instances"][0]["attributes"]["input"]["value"];
    assert_eq!(*made, json!(format!("{id} here")), "{state}");
    let deleted = http.delete(at(&format!("/tfstacks/{id}"))).bearer_auth(&token).send().await.unwrap();
    assert_eq!(deleted.status(), 202);
    until("it is gone", || async { (get(format!("/tfstacks/{id}")).await.status() == 404).then_some(()) })
        .await;
    assert!(!object.exists(), "the workspace is deleted");
    doors.close().await;
}

/// Each of their applies waits for the test, so that neither could go on if the other had to end before.
#[tokio::test(flavor = "multi_thread")]
async fn several_stacks_are_applied_at_the_same_time() {
    const TOGETHER: usize = 2;
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    let gate = Gate::new();
    let code = format!("variable \"word\" {{}}\n{}", gate.code());
    let _source = declare_repository(&client, "code", &[("machine/main.tf", &code)]).await;
    let template = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": "machine" },
        "spec": { "repository": { "name": "code" }, "branch": "main", "path": "machine", "template": {} },
    });
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    layers.create(&PostParams::default(), &serde_json::from_value(template).unwrap()).await.unwrap();
    layer_until(&client, "machine", "its variables are known", is("Ready")).await;
    let token = terrane.command(&["token", "create", "several", "--scope", "read,write", "--expires", "1h"]);
    let token = finished(token).with_code(0).out.trim().to_owned();
    let service = format!("http://{}", terrane.service().await);
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut ids = Vec::new();
    for number in 0..TOGETHER {
        let body = json!({ "template": "machine", "variables": { "word": format!("stack {number}") } });
        let asked = http.post(format!("{service}/tfstacks")).bearer_auth(&token).json(&body);
        let answer = asked.send().await.unwrap();
        assert_eq!(answer.status(), 202);
        let made: Value = answer.json().await.unwrap();
        ids.push(made["stack"]["id"].as_str().unwrap().to_owned());
    }
    until("all wait at the gate together", || std::future::ready((gate.arrived() == TOGETHER).then_some(())))
        .await;
    assert!(gate.is_waited_at(), "the first has not gone on meanwhile");
    for id in &ids {
        let answer = http.get(format!("{service}/tfstacks/{id}/requests/create")).bearer_auth(&token);
        let request: Value = answer.send().await.unwrap().json().await.unwrap();
        assert_eq!(request["state"], "running", "{request}");
    }
    gate.open();
    for id in &ids {
        layer_until(&client, id, "applied", is("Ready")).await;
    }
    assert_eq!(gate.arrived(), TOGETHER, "each was applied once");
    terrane.signal(Signal::TERM);
    assert_eq!(terrane.ended().await.code(), Some(0));
}
