//! Questions that are asked as objects and answered at once: TokenReview and the access reviews. Nothing is stored.

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{
    SelfSubjectReview, SelfSubjectReviewStatus, TokenReview, TokenReviewStatus, UserInfo,
};
use k8s_openapi::api::authorization::v1::{
    LocalSubjectAccessReview, NonResourceAttributes, NonResourceRule, ResourceAttributes, ResourceRule,
    SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview, SubjectAccessReviewSpec,
    SubjectAccessReviewStatus, SubjectRulesReviewStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::{Value, json};

use super::index::aggregate;
use super::refusal::FieldError;
use super::{Attributes, Authenticator, Authorizer, Identity, Refusal, Resource, Verdict};

const GROUP: &str = "authorization.k8s.io";

/// Whom does this token prove, and to whom? A token that does not hold is an answer, not an error.
pub fn token(
    authenticator: &Authenticator,
    mut review: TokenReview,
    now: Timestamp,
) -> Result<TokenReview, Refusal> {
    let token = review.spec.token.as_deref().unwrap_or_default();
    if token.is_empty() {
        return Err(Refusal::bad_request("token is required for TokenReview in authentication"));
    }
    let audiences = review.spec.audiences.clone().unwrap_or_default();
    review.status = Some(match authenticator.prove(token, &audiences, now) {
        Ok(proved) => TokenReviewStatus {
            authenticated: Some(true),
            audiences: Some(proved.audiences),
            user: Some(user_info(&proved.identity)),
            error: None,
        },
        Err(error) => TokenReviewStatus {
            // A server that is not sure says nothing, and shows a user without a name.
            user: Some(UserInfo::default()),
            error: Some(error.to_review()),
            ..TokenReviewStatus::default()
        },
    });
    Ok(review)
}

/// Who am I? (`kubectl auth whoami`)
pub fn self_subject(identity: &Identity, now: Timestamp) -> SelfSubjectReview {
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    SelfSubjectReview {
        metadata: ObjectMeta { creation_timestamp: Some(Time(now)), ..ObjectMeta::default() },
        status: Some(SelfSubjectReviewStatus { user_info: Some(user_info(identity)) }),
    }
}

/// May this user? Asked by whoever holds `create` on subjectaccessreviews.
pub fn subject_access(
    authorizer: &Authorizer,
    mut review: SubjectAccessReview,
) -> Result<SubjectAccessReview, Refusal> {
    let mut errors = subject_errors(&review.spec);
    errors.extend(metadata_error(&review.metadata, "must be empty"));
    refuse(&errors)?;
    let identity = subject(&review.spec);
    review.status = Some(answer(
        authorizer,
        &identity,
        review.spec.resource_attributes.as_ref(),
        review.spec.non_resource_attributes.as_ref(),
    ));
    Ok(review)
}

/// As `subject_access`, for one namespace and whoever administers it.
pub fn local_subject_access(
    authorizer: &Authorizer,
    namespace: &str,
    mut review: LocalSubjectAccessReview,
) -> Result<LocalSubjectAccessReview, Refusal> {
    let own = review.metadata.namespace.get_or_insert_with(|| namespace.to_owned()).clone();
    let mut errors = subject_errors(&review.spec);
    let rest = ObjectMeta { namespace: None, ..review.metadata.clone() };
    errors.extend(metadata_error(&rest, "must be empty except for namespace"));
    if let Some(wanted) = &review.spec.resource_attributes {
        let asked = wanted.namespace.clone().unwrap_or_default();
        if asked != own {
            errors.push(FieldError {
                field: "spec.resourceAttributes.namespace",
                value: asked.into(),
                why: "must match metadata.namespace",
            });
        }
    }
    if let Some(path) = &review.spec.non_resource_attributes {
        errors.push(FieldError {
            field: "spec.nonResourceAttributes",
            value: json!(path),
            why: "disallowed on this kind of request",
        });
    }
    refuse(&errors)?;
    if own != namespace {
        let message = format!("spec.resourceAttributes.namespace must match namespace: {namespace}");
        return Err(Refusal::bad_request(message));
    }
    let identity = subject(&review.spec);
    review.status = Some(answer(authorizer, &identity, review.spec.resource_attributes.as_ref(), None));
    Ok(review)
}

/// May I? (`kubectl auth can-i`)
pub fn self_subject_access(
    authorizer: &Authorizer,
    identity: &Identity,
    mut review: SelfSubjectAccessReview,
) -> Result<SelfSubjectAccessReview, Refusal> {
    let resource = review.spec.resource_attributes.as_ref();
    let path = review.spec.non_resource_attributes.as_ref();
    let mut errors = Vec::from_iter(target_error(resource, path));
    errors.extend(metadata_error(&review.metadata, "must be empty"));
    refuse(&errors)?;
    review.status = Some(answer(authorizer, identity, resource, path));
    Ok(review)
}

/// What may I, in this namespace? (`kubectl auth can-i --list`)
pub fn self_subject_rules(
    authorizer: &Authorizer,
    identity: &Identity,
    review: SelfSubjectRulesReview,
) -> Result<SelfSubjectRulesReview, Refusal> {
    let namespace = review.spec.namespace.as_deref().unwrap_or_default();
    if namespace.is_empty() {
        return Err(Refusal::bad_request("no namespace on request"));
    }
    let index = authorizer.index();
    let (held, missing) = index.rules_of(identity, namespace);
    let some = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|items| !items.is_empty());
    let resource_rules = held.iter().filter(|rule| some(&rule.resources)).map(|rule| ResourceRule {
        api_groups: rule.api_groups.clone(),
        resource_names: rule.resource_names.clone(),
        resources: rule.resources.clone(),
        verbs: rule.verbs.clone(),
    });
    let paths = held.iter().filter(|rule| some(&rule.non_resource_urls)).map(|rule| NonResourceRule {
        non_resource_urls: rule.non_resource_urls.clone(),
        verbs: rule.verbs.clone(),
    });
    let status = SubjectRulesReviewStatus {
        evaluation_error: Some(aggregate(&missing)).filter(|text| !text.is_empty()),
        incomplete: false,
        non_resource_rules: paths.collect(),
        resource_rules: resource_rules.collect(),
    };
    // The question is not repeated: kube-apiserver answers with the status alone.
    Ok(SelfSubjectRulesReview { status: Some(status), ..SelfSubjectRulesReview::default() })
}

fn user_info(identity: &Identity) -> UserInfo {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    UserInfo {
        extra: Some((*identity.extra).clone()).filter(|extra| !extra.is_empty()),
        groups: Some(identity.groups.to_vec()).filter(|groups| !groups.is_empty()),
        uid: text(&identity.uid),
        username: text(&identity.user),
    }
}

fn subject(spec: &SubjectAccessReviewSpec) -> Identity {
    Identity {
        user: spec.user.as_deref().unwrap_or_default().into(),
        uid: spec.uid.as_deref().unwrap_or_default().into(),
        groups: spec.groups.clone().unwrap_or_default().into(),
        extra: spec.extra.clone().unwrap_or_default().into(),
    }
}

fn answer(
    authorizer: &Authorizer,
    identity: &Identity,
    resource: Option<&ResourceAttributes>,
    path: Option<&NonResourceAttributes>,
) -> SubjectAccessReviewStatus {
    let verdict = match (resource, path) {
        (Some(wanted), _) => authorizer.check(
            identity,
            &Attributes::resource(
                wanted.verb.as_deref().unwrap_or_default(),
                Resource {
                    group: wanted.group.as_deref().unwrap_or_default(),
                    version: wanted.version.as_deref().filter(|version| !version.is_empty()).unwrap_or("*"),
                    resource: wanted.resource.as_deref().unwrap_or_default(),
                    subresource: wanted.subresource.as_deref().unwrap_or_default(),
                    name: wanted.name.as_deref().unwrap_or_default(),
                    namespace: wanted.namespace.as_deref().unwrap_or_default(),
                },
            ),
        ),
        (None, Some(wanted)) => {
            let (verb, path) = (wanted.verb.as_deref().unwrap_or_default(), wanted.path.as_deref());
            authorizer.check(identity, &Attributes::path(verb, path.unwrap_or_default()))
        }
        // Refused by validation before it comes here.
        (None, None) => Verdict::Denied { reason: String::new() },
    };
    let (allowed, reason) = match verdict {
        Verdict::Allowed { reason } => (true, reason.to_string()),
        Verdict::Denied { reason } => (false, reason),
    };
    let reason = Some(reason).filter(|reason| !reason.is_empty());
    SubjectAccessReviewStatus { allowed, reason, ..SubjectAccessReviewStatus::default() }
}

fn subject_errors(spec: &SubjectAccessReviewSpec) -> Vec<FieldError> {
    let resource = spec.resource_attributes.as_ref();
    let mut errors = Vec::from_iter(target_error(resource, spec.non_resource_attributes.as_ref()));
    let nobody = spec.user.as_deref().unwrap_or_default().is_empty();
    if nobody && spec.groups.as_deref().unwrap_or_default().is_empty() {
        let why = "at least one of user or group must be specified";
        errors.push(FieldError { field: "spec.user", value: "".into(), why });
    }
    errors
}

fn target_error(
    resource: Option<&ResourceAttributes>,
    path: Option<&NonResourceAttributes>,
) -> Option<FieldError> {
    match (resource, path) {
        (Some(_), Some(path)) => Some(FieldError {
            field: "spec.nonResourceAttributes",
            value: json!(path),
            why: "cannot be specified in combination with resourceAttributes",
        }),
        (None, None) => Some(FieldError {
            field: "spec.resourceAttributes",
            value: Value::Null,
            why: "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        }),
        (Some(_), None) | (None, Some(_)) => None,
    }
}

fn metadata_error(metadata: &ObjectMeta, why: &'static str) -> Option<FieldError> {
    let bare = ObjectMeta { managed_fields: None, ..metadata.clone() };
    (bare != ObjectMeta::default()).then(|| FieldError { field: "metadata", value: json!(metadata), why })
}

/// Go has dropped the kind by the time it validates a review, so its message names only the group.
fn refuse(errors: &[FieldError]) -> Result<(), Refusal> {
    if errors.is_empty() { Ok(()) } else { Err(Refusal::invalid(GROUP, "", "", errors)) }
}
