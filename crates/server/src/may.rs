//! What every handler takes instead of headers and names: proof that this caller may do this to this object. There is no other way to the
//! names in the path, so no handler can forget to ask.

use std::marker::PhantomData;
use std::sync::Arc;

use api::service::subresource::{LOG, OUTPUTS, PLAN, STATE};
use api::text::ObjectName;
use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;

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
        let (namespace, name) =
            (named(parts, service, "namespace").await?, named(parts, service, "name").await?);
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
}

/// A part of the path that can name an object. What cannot names nothing that is there.
pub(crate) async fn named(parts: &mut Parts, service: &Arc<Service>, key: &str) -> Result<String, Refusal> {
    let nothing = |_| Refusal::NotFound("the path names nothing that can be there".to_owned());
    let params = RawPathParams::from_request_parts(parts, service).await.map_err(nothing)?;
    let value = params.iter().find(|(found, _)| *found == key).map(|(_, value)| value.to_owned());
    let value = value.unwrap_or_default();
    ObjectName::new(&*value)
        .map(|_| value)
        .map_err(|error| Refusal::NotFound(format!("no {key} can be called so: {error}")))
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
