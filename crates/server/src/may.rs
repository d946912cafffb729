//! What every handler takes instead of headers and names: proof that this caller may do this to this object. There is no other way to the
//! names in the path, so no handler can forget to ask.

use std::marker::PhantomData;
use std::sync::Arc;

use api::service::subresource::{LOG, OUTPUTS, PLAN, STATE};
use api::text::ObjectName;
use axum::extract::{FromRequestParts, Query, RawPathParams};
use axum::http::request::Parts;
use serde::Deserialize;

use crate::person::{Person, Right};
use crate::{Refusal, Service};

/// What can be done to one object.
pub(crate) trait Act: Send + Sync + 'static {
    const VERB: &'static str;
    const RESOURCE: &'static str;
    const SUBRESOURCE: Option<&'static str> = None;
}

macro_rules! acts {
    ($($(#[$doc:meta])* $act:ident: $verb:literal $resource:literal $(/ $sub:expr)?;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) enum $act {}
        impl Act for $act {
            const VERB: &'static str = $verb;
            const RESOURCE: &'static str = $resource;
            $(const SUBRESOURCE: Option<&'static str> = Some($sub);)?
        }
    )*};
}

acts! {
    GetLayer: "get" "terraformlayers";
    /// Ask for a plan, suspend, resume, cancel.
    PatchLayer: "patch" "terraformlayers";
    CreateLayer: "create" "terraformlayers";
    DeleteLayer: "delete" "terraformlayers";
    GetOutputs: "get" "terraformlayers" / OUTPUTS;
    GetState: "get" "terraformlayers" / STATE;
    UpdateState: "update" "terraformlayers" / STATE;
    GetRun: "get" "terraformruns";
    GetLog: "get" "terraformruns" / LOG;
    GetPlan: "get" "terraformruns" / PLAN;
    GetRepository: "get" "terraformrepositories";
    ListApprovals: "list" "terraformapprovals";
    CreateApproval: "create" "terraformapprovals";
}

/// The caller may do `A` to the object that the path names.
#[derive(Debug)]
pub(crate) struct May<A> {
    pub(crate) person: Person,
    pub(crate) namespace: String,
    pub(crate) name: String,
    act: PhantomData<A>,
}

impl<A: Act> FromRequestParts<Arc<Service>> for May<A> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self, Refusal> {
        let person = service.person(parts).await?;
        let (namespace, name) = place(parts, service).await?;
        Self::of(service, person, namespace, name).await
    }
}

impl<A: Act> May<A> {
    async fn of(service: &Service, person: Person, namespace: String, name: String) -> Result<Self, Refusal> {
        let right = Right {
            verb: A::VERB,
            resource: A::RESOURCE,
            subresource: A::SUBRESOURCE,
            namespace: &namespace,
            // Of what belongs to a layer the kind is what rights are about.
            name: if A::RESOURCE == "terraformapprovals" { "" } else { &name },
        };
        service.check(&person, right).await?;
        Ok(Self { person, namespace, name, act: PhantomData })
    }

    /// Proof that the same caller may do something to another object of the namespace.
    pub(crate) async fn also<B: Act>(&self, service: &Service, name: &str) -> Result<May<B>, Refusal> {
        May::of(service, self.person.clone(), self.namespace.clone(), name.to_owned()).await
    }
}

/// The namespace of paths that have none.
pub(crate) const USUAL_NAMESPACE: &str = "default";

/// Where a stack is, whose path has no namespace.
#[derive(Debug, Deserialize)]
struct Within {
    namespace: Option<String>,
}

/// The object that the path names: by namespace and name; or, of a stack, by its id and the namespace of the query. Whoever makes
/// something names none. What cannot be a name names nothing that is there.
async fn place(parts: &mut Parts, service: &Arc<Service>) -> Result<(String, String), Refusal> {
    let nothing = |_| Refusal::NotFound("the path names nothing that can be there".to_owned());
    let params = RawPathParams::from_request_parts(parts, service).await.map_err(nothing)?;
    let found =
        |keys: &[&str]| params.iter().find(|(key, _)| keys.contains(key)).map(|(_, value)| value.to_owned());
    let namespace = match found(&["namespace"]) {
        Some(namespace) => namespace,
        None => {
            let Query(within) = Query::<Within>::try_from_uri(&parts.uri)?;
            within.namespace.unwrap_or_else(|| USUAL_NAMESPACE.to_owned())
        }
    };
    let namespace = checked("namespace", namespace)?;
    let name = found(&["name", "id"]).map(|name| checked("name", name)).transpose()?;
    Ok((namespace, name.unwrap_or_default()))
}

/// A part of the path that can name an object. What cannot names nothing that is there.
pub(crate) async fn named(parts: &mut Parts, service: &Arc<Service>, key: &str) -> Result<String, Refusal> {
    let nothing = |_| Refusal::NotFound("the path names nothing that can be there".to_owned());
    let params = RawPathParams::from_request_parts(parts, service).await.map_err(nothing)?;
    let value = params.iter().find(|(found, _)| *found == key).map(|(_, value)| value.to_owned());
    checked(key, value.unwrap_or_default())
}

fn checked(what: &str, value: String) -> Result<String, Refusal> {
    match ObjectName::new(&*value) {
        Ok(_) => Ok(value),
        Err(error) => Err(Refusal::NotFound(format!("no {what} can be called so: {error}"))),
    }
}

/// The caller is somebody, which is all that is asked here: what they are shown is filtered by their rights.
#[derive(Debug)]
pub(crate) struct Caller(pub(crate) Person);

impl FromRequestParts<Arc<Service>> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self, Refusal> {
        service.person(parts).await.map(Caller)
    }
}
