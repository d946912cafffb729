//! TerraformNotification: what of a namespace's layers is told to whom, outside of the cluster.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::{MailAddress, ObjectName};

/// What is told, and to whom.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "terrane.dev",
    version = "v1alpha1",
    kind = "TerraformNotification",
    plural = "terraformnotifications",
    namespaced,
    status = "TerraformNotificationStatus",
    shortname = "tfn",
    category = "terrane",
    derive = "PartialEq",
    doc = "Somebody who is told what happens to the layers of this namespace: a program by a webhook, a channel of Slack or Teams, or people by e-mail.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        description = "Whether the receiver can be told, and took what it was told last"
    ),
    printcolumn(
        name = "Last",
        type_ = "string",
        json_path = ".status.lastSent.event",
        description = "What was told last"
    ),
    printcolumn(
        name = "Layer",
        type_ = "string",
        json_path = ".status.lastSent.layer",
        description = "Of which layer"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#,
        description = "Why, in words",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Since when it exists"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct TerraformNotificationSpec {
    /// Who is told: exactly one of these.
    pub to: Receiver,
    /// Which events are told. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub events: Vec<Event>,
    /// Of which layers. Default: of all in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<LayerSelector>,
    /// In which words. Default: a line on the event, and what the layer or run says of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Template>,
}

/// Something that happened to a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Event {
    /// A plan waits until a person approves it.
    ApprovalNeeded,
    /// A plan was applied.
    Applied,
    /// An apply failed, or nobody knows how it ended.
    ApplyFailed,
    /// Everything that the layer had made was destroyed.
    Destroyed,
    /// The infrastructure differs from the code that was applied.
    Drifted,
    /// A plan failed, and is not tried again.
    PlanFailed,
    /// The layer goes no further by itself.
    Stalled,
}

impl Event {
    pub const ALL: [Self; 7] = [
        Self::ApprovalNeeded,
        Self::Applied,
        Self::ApplyFailed,
        Self::Destroyed,
        Self::Drifted,
        Self::PlanFailed,
        Self::Stalled,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ApprovalNeeded => "ApprovalNeeded",
            Self::Applied => "Applied",
            Self::ApplyFailed => "ApplyFailed",
            Self::Destroyed => "Destroyed",
            Self::Drifted => "Drifted",
            Self::PlanFailed => "PlanFailed",
            Self::Stalled => "Stalled",
        }
    }
}

/// An address that lets anybody write there is a secret, so it is in a Secret of this namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.webhook), has(self.slack), has(self.teams), has(self.email)].filter(x, x).size() == 1")
        .message("exactly one of webhook, slack, teams and email must be set")
)]
pub struct Receiver {
    /// A program of yours: a POST of JSON, signed where the Secret has a `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Endpoint>,
    /// An incoming webhook of Slack, or of something that takes the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slack: Option<Endpoint>,
    /// A webhook of a Teams workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teams: Option<Endpoint>,
    /// People, by a mail server of yours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<Mail>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// A Secret of this namespace: its key `url` is the address (https), `key` what a webhook is signed with, and `ca.crt` the authority of
    /// a server whose certificate no public one has signed.
    pub secret_name: ObjectName,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Mail {
    /// A Secret of this namespace: its key `url` is the mail server (smtps://HOST:465 or smtp+starttls://HOST:587), `username` and `password`
    /// are what it is logged in with, and `ca.crt` is the authority of a server whose certificate no public one has signed.
    pub secret_name: ObjectName,
    /// Whom mails come from.
    pub from: MailAddress,
    /// Whom they go to.
    #[schemars(length(min = 1, max = 20))]
    pub to: Vec<MailAddress>,
}

impl Mail {
    /// Whom one mail goes to at most.
    pub const MOST: usize = 20;
}

/// A layer is meant if it has one of the names, or there are none, and all of the labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LayerSelector {
    /// Names of layers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub names: Vec<ObjectName>,
    /// Labels that a layer has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
}

/// Texts with names in braces: `{event}`, `{namespace}`, `{layer}`, `{message}`, `{run}`, `{revision}`, `{at}`. `{{` and `}}` are braces.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    /// The first line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub title: Option<String>,
    /// What follows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub text: Option<String>,
}

/// What was told, and what could not be.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TerraformNotificationStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The last delivery that the receiver took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sent: Option<Delivered>,
    /// The last delivery that it did not take, until it takes another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<Undelivered>,
    /// Deliveries of the last hours that are over, so that none is made again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512))]
    pub settled: Vec<Settled>,
    /// Nothing that happened until then is told any more: there was more since than is remembered one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::condition::time_schema")]
    pub since: Option<Time>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::list_schema")]
    pub conditions: Vec<Condition>,
}

impl TerraformNotificationStatus {
    /// Deliveries that are remembered one by one.
    pub const SETTLED: usize = 512;
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Delivered {
    /// Names the delivery, to the receiver too; one that comes twice has the same.
    pub id: String,
    /// What happened.
    pub event: Event,
    /// To which layer.
    pub layer: String,
    /// When it was taken.
    #[schemars(schema_with = "crate::condition::time_schema")]
    pub at: Time,
    /// By whom it was not taken, and why, where others of the same receiver took it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub except: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Undelivered {
    /// Names the delivery.
    pub id: String,
    /// What happened.
    pub event: Event,
    /// To which layer.
    pub layer: String,
    /// Why it was not taken.
    pub message: String,
    /// Whether it is not tried again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub given_up: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Settled {
    /// Names the delivery.
    pub id: String,
    /// When it happened what it tells of; of something that goes on, when it was last seen.
    #[schemars(schema_with = "crate::condition::time_schema")]
    pub at: Time,
}
