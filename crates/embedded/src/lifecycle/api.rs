//! Writes of the lifecycle: through the API's own router, so that finalizers, grace periods, preconditions and field managers
//! work as for every other client. Reads come from the store's snapshot.

use http::{Method, Request, StatusCode, header};
use serde_json::{Value, json};

use super::Error;
use crate::store::Stored;

#[derive(Clone)]
pub(super) struct Api {
    client: kube::Client,
    part: Part,
}

/// The part of a cluster that does the same there. Fields that are written here show its name as their manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Server,
    Controllers,
}

impl Part {
    fn user_agent(self) -> &'static str {
        match self {
            Part::Server => "kube-apiserver",
            Part::Controllers => "kube-controller-manager",
        }
    }
}

/// What becomes of the dependents of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

impl Propagation {
    fn as_str(self) -> &'static str {
        match self {
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
            Propagation::Orphan => "Orphan",
        }
    }
}

/// How a write ended that another write may have made needless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Done,
    /// The object is gone or is another one by now; there is nothing to do any more.
    Gone,
}

impl Api {
    pub(super) fn new(client: kube::Client, part: Part) -> Self {
        Api { client, part }
    }

    /// Deletes `object` if it is still what it was.
    pub(super) async fn delete(
        &self,
        path: &str,
        object: &Stored,
        policy: Propagation,
    ) -> Result<Written, Error> {
        let options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy.as_str(),
            "preconditions": {"uid": object.uid(), "resourceVersion": object.revision.to_string()},
        });
        gone_is_fine(self.send(Method::DELETE, path, "application/json", &options).await)
    }

    pub(super) async fn delete_collection(&self, path: &str) -> Result<Written, Error> {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
        gone_is_fine(self.send(Method::DELETE, path, "application/json", &options).await)
    }

    /// Merges `metadata` into the object's, if it is still what it was.
    pub(super) async fn patch_metadata(
        &self,
        path: &str,
        object: &Stored,
        metadata: Value,
    ) -> Result<Written, Error> {
        let mut patch = json!({"metadata": metadata});
        if let Some(metadata) = patch.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("uid".to_owned(), json!(object.uid()));
            metadata.insert("resourceVersion".to_owned(), object.revision.to_string().into());
        }
        gone_is_fine(self.send(Method::PATCH, path, "application/merge-patch+json", &patch).await)
    }

    /// Creates; that somebody was faster is as good.
    pub(super) async fn create(&self, path: &str, object: &Value) -> Result<(), Error> {
        match self.send(Method::POST, path, "application/json", object).await {
            Err(Error::Api { code: StatusCode::CONFLICT, .. }) => Ok(()),
            result => result,
        }
    }

    /// Replaces the whole object, or its status; `object` carries the revision that it replaces.
    pub(super) async fn replace(&self, path: &str, object: &Value) -> Result<Written, Error> {
        gone_is_fine(self.send(Method::PUT, path, "application/json", object).await)
    }

    /// Server-side apply by Terrane itself, which owns what it installs.
    pub(super) async fn apply(&self, path: &str, object: &Value) -> Result<(), Error> {
        let path = format!("{path}?fieldManager=terrane&force=true");
        self.send(Method::PATCH, &path, "application/apply-patch+yaml", object).await
    }

    async fn send(&self, method: Method, path: &str, content_type: &str, body: &Value) -> Result<(), Error> {
        let request = Request::builder()
            .method(&method)
            .uri(path)
            .header(header::CONTENT_TYPE, content_type)
            .header(header::USER_AGENT, self.part.user_agent())
            .body(body.to_string().into_bytes())
            .map_err(|error| Error::Request { path: path.to_owned(), why: error.to_string() })?;
        match self.client.request_text(request).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) => Err(Error::Api {
                method,
                path: path.to_owned(),
                code: StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
                message: status.message.clone(),
            }),
            Err(error) => Err(Error::Request { path: path.to_owned(), why: error.to_string() }),
        }
    }
}

fn gone_is_fine(result: Result<(), Error>) -> Result<Written, Error> {
    match result {
        Ok(()) => Ok(Written::Done),
        Err(Error::Api { code: StatusCode::NOT_FOUND, .. }) => Ok(Written::Gone),
        Err(error) => Err(error),
    }
}
