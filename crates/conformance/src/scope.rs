//! What one case has: a server, a name that no other case uses, and requests whose answers it can look at whole.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use http::{HeaderMap, Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};

use crate::target::Target;
use crate::watching::Events;

/// Longer than anything takes on a busy machine: it only ends a wait for what never comes.
pub const LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(25);

pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const JSON_PATCH: &str = "application/json-patch+json";
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub(crate) const APPLY: &str = "application/apply-patch+yaml";

pub(crate) const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// The server as one user sees it, and the case's own name.
#[derive(Debug, Clone)]
pub struct Scope {
    target: Target,
    name: Arc<str>,
    headers: HeaderMap,
}

impl Scope {
    /// A scope whose name starts with `subject`, asking as the administrator.
    pub fn new(target: Target, subject: &str) -> Result<Self> {
        let label: String = subject
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
            .collect();
        let label: String = label.chars().take(40).collect();
        let name = format!("{}-{:08x}", label.trim_matches('-'), rand::random::<u32>()).into();
        let token = target.token().to_owned();
        Scope { target, name, headers: HeaderMap::new() }.with_token(&token)
    }

    /// Unique to this case: for its namespace, its groups, its cluster-scoped objects.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same case asking with another token.
    pub fn with_token(&self, token: &str) -> Result<Self> {
        self.with_header("authorization", &format!("Bearer {token}"))
    }

    /// The same case asking without credentials.
    pub fn anonymous(&self) -> Self {
        Self { target: self.target.clone(), name: self.name.clone(), headers: HeaderMap::new() }
    }

    /// The same case with one more header in each request.
    pub fn with_header(&self, name: &'static str, value: &str) -> Result<Self> {
        let mut scope = self.clone();
        scope.headers.insert(name, value.parse().with_context(|| format!("header {name}"))?);
        Ok(scope)
    }

    /// Creates the case's namespace and gives its path, `/api/v1/namespaces/…`.
    pub async fn namespace(&self) -> Result<String> {
        let name = self.name();
        self.post("/api/v1/namespaces", &json!({"metadata": {"name": name}})).await?.code(201)?;
        Ok(format!("/api/v1/namespaces/{name}"))
    }

    /// A namespace in which pods can be created, because its ServiceAccount is there.
    pub async fn pod_namespace(&self) -> Result<String> {
        let path = self.namespace().await?;
        self.until(&format!("{path}/serviceaccounts/default"), |answer| answer.code == 200).await?;
        Ok(path)
    }

    /// Creates a CustomResourceDefinition and waits until its objects can be created.
    pub async fn install(&self, definition: &Value) -> Result<String> {
        self.post(DEFINITIONS, definition).await?.code(201)?;
        let path = format!("{DEFINITIONS}/{}", text(definition, "/metadata/name"));
        self.until(&path, |answer| answer.json().is_ok_and(|found| established(&found))).await?;
        let versions =
            definition.pointer("/spec/versions").and_then(Value::as_array).cloned().unwrap_or_default();
        for version in &versions {
            let group = text(definition, "/spec/group");
            let served = format!(
                "/apis/{group}/{}/{}",
                text(version, "/name"),
                text(definition, "/spec/names/plural")
            );
            // A server may take a moment from Established to serving; a list is the first thing that works.
            if version["served"] == true {
                self.until(&served, |answer| answer.code == 200).await?;
            }
        }
        Ok(path)
    }

    /// Installs Terrane's definitions, which cases and kubectl look up by discovery and OpenAPI, and waits until both know all of them:
    /// a server publishes these some time after it serves the objects, and kubectl keeps what it was told for hours.
    pub async fn install_terrane(&self) -> Result<()> {
        let definitions: Vec<Value> =
            api::custom_resources().iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
        for definition in &definitions {
            self.install(definition).await?;
        }
        let aggregated = self.with_header(
            "accept",
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json",
        )?;
        for definition in &definitions {
            let group = text(definition, "/spec/group");
            let version = text(definition, "/spec/versions/0/name");
            let kind = format!("\"{}\"", text(definition, "/spec/names/kind"));
            let shows = |answer: &Answer| answer.code == 200 && answer.text().contains(&kind);
            self.until(&format!("/apis/{group}/{version}"), shows).await?;
            aggregated.until("/apis", shows).await?;
            self.until(&format!("/openapi/v3/apis/{group}/{version}"), shows).await?;
            self.until("/openapi/v2", shows).await?;
        }
        Ok(())
    }

    pub async fn get(&self, path: &str) -> Result<Answer> {
        self.call(Call::new(Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Answer> {
        self.call(Call::new(Method::POST, path).json(body)).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Result<Answer> {
        self.call(Call::new(Method::PUT, path).json(body)).await
    }

    pub async fn patch(&self, path: &str, content_type: &str, body: &Value) -> Result<Answer> {
        self.call(Call::new(Method::PATCH, path).body(content_type, body.to_string())).await
    }

    pub async fn delete(&self, path: &str) -> Result<Answer> {
        self.call(Call::new(Method::DELETE, path)).await
    }

    pub async fn delete_with(&self, path: &str, options: &Value) -> Result<Answer> {
        self.call(Call::new(Method::DELETE, path).json(options)).await
    }

    /// Opens a watch; `path` has its parameters, `watch=true` among them.
    pub async fn watch(&self, path: &str) -> Result<Events> {
        let response = self.send(Call::new(Method::GET, path)).await?;
        if response.status() != 200 {
            let answer = Answer::read(response).await?;
            bail!("the watch {path} was refused: {answer}");
        }
        Ok(Events::new(response.into_body()))
    }

    /// Sends one request and reads the whole answer.
    pub async fn call(&self, call: Call) -> Result<Answer> {
        let what = format!("{} {}", call.method, call.path);
        let answer = async { Answer::read(self.send(call).await?).await };
        tokio::time::timeout(LIMIT, answer).await.with_context(|| format!("{what}: no answer"))?.context(what)
    }

    /// Asks again until the answer fits, and gives that answer.
    pub async fn until(&self, path: &str, fits: impl Fn(&Answer) -> bool) -> Result<Answer> {
        let limit = Instant::now() + LIMIT;
        loop {
            let answer = self.get(path).await?;
            if fits(&answer) {
                return Ok(answer);
            }
            ensure!(Instant::now() < limit, "{path} never became what was waited for; last: {answer}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until the object is gone.
    pub async fn until_gone(&self, path: &str) -> Result<()> {
        self.until(path, |answer| answer.code == 404).await.map(drop)
    }

    async fn send(&self, call: Call) -> Result<http::Response<Body>> {
        let mut request = Request::builder().method(call.method.clone()).uri(&call.path);
        if let Some(headers) = request.headers_mut() {
            headers.extend(self.headers.clone());
            headers.extend(call.headers);
        }
        let body = call.body.map_or_else(Body::empty, Body::from);
        let request =
            request.body(body).with_context(|| format!("building {} {}", call.method, call.path))?;
        self.target
            .client()
            .send(request)
            .await
            .with_context(|| format!("sending {} {}", call.method, call.path))
    }
}

fn established(definition: &Value) -> bool {
    let conditions = definition.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|found| found["type"] == "Established" && found["status"] == "True")
}

/// One request.
#[derive(Debug)]
pub struct Call {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Option<Vec<u8>>,
}

impl Call {
    pub fn new(method: Method, path: &str) -> Self {
        Self { method, path: path.to_owned(), headers: HeaderMap::new(), body: None }
    }

    pub fn json(self, body: &Value) -> Self {
        self.body("application/json", body.to_string())
    }

    pub fn body(self, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        Self { body: Some(body.into()), ..self }.header("content-type", content_type)
    }

    pub fn accept(self, content_type: &str) -> Self {
        self.header("accept", content_type)
    }

    /// A value that is no header is left out; cases give only literals.
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        if let Ok(value) = value.parse() {
            self.headers.append(name, value);
        }
        self
    }
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl std::fmt::Display for Answer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = self.text();
        let cut: String = text.chars().take(3000).collect();
        write!(formatter, "{} {cut}", self.code)
    }
}

impl Answer {
    async fn read(response: http::Response<Body>) -> Result<Self> {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.context("reading the answer")?.to_bytes().to_vec();
        Ok(Self { code: parts.status.as_u16(), headers: parts.headers, body })
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("no JSON: {self}"))
    }

    /// The body, if the answer has this code.
    pub fn code(&self, wanted: u16) -> Result<Value> {
        ensure!(self.code == wanted, "wanted {wanted}, got {self}");
        self.json()
    }

    /// The body of any good answer.
    pub fn ok(&self) -> Result<Value> {
        ensure!((200..300).contains(&self.code), "wanted success, got {self}");
        self.json()
    }

    /// The `Status`, if the answer is this refusal word for word.
    pub fn refused(&self, code: u16, reason: &str, message: &str) -> Result<Value> {
        let status = self.json()?;
        let wanted = json!(["v1", "Status", "Failure", code, reason, message]);
        let got = json!([
            status["apiVersion"],
            status["kind"],
            status["status"],
            status["code"],
            status["reason"],
            status["message"]
        ]);
        ensure!(
            self.code == code && got == wanted,
            "\n      wanted {wanted}\n      got    {} {got}",
            self.code
        );
        Ok(status)
    }

    /// One header as text, empty when it is not there.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// All `Warning` headers.
    pub fn warnings(&self) -> Vec<&str> {
        self.headers.get_all("warning").iter().filter_map(|value| value.to_str().ok()).collect()
    }
}

/// `[reason, message, field]` of each cause of a refusal.
pub(crate) fn causes(status: &Value) -> Vec<Value> {
    let causes = status.pointer("/details/causes").and_then(Value::as_array);
    causes
        .into_iter()
        .flatten()
        .map(|cause| json!([cause["reason"], cause["message"], cause["field"]]))
        .collect()
}

/// The items of a list.
pub(crate) fn items(list: &Value) -> Vec<Value> {
    list["items"].as_array().cloned().unwrap_or_default()
}

/// The names of a list's items, in its order.
pub(crate) fn names(list: &Value) -> Vec<String> {
    items(list)
        .iter()
        .map(|item| item.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned())
        .collect()
}

/// An object's revision, as text.
pub(crate) fn revision(object: &Value) -> String {
    object.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// A string inside a value, empty when it is not there.
pub(crate) fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// A ConfigMap with one entry.
pub(crate) fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
}

/// The smallest pod that a server takes.
pub(crate) fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "example.com/image:1"}]},
    })
}
