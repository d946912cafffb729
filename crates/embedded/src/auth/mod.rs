//! Who is asking and what they may do: identities, tokens, RBAC, impersonation, reviews, admission.
//!
//! The HTTP layer reads the [`Identity`] from the request's extensions, lets [`impersonation::resolve`] replace it, asks
//! [`Authorizer::check`] before each verb and
//! [`admission::admit`] before each write. Nothing here parses paths or writes objects.

pub mod accounts;
pub mod admission;
pub mod attributes;
pub mod authentication;
pub mod authorizer;
mod constrained;
pub mod defaults;
pub mod escalation;
pub mod identity;
pub mod impersonation;
pub mod index;
pub mod layers;
pub mod refusal;
pub mod reviews;
pub mod rules;
pub mod tokens;

#[cfg(test)]
mod tests;

pub use attributes::{Attributes, Resource, Target};
pub use authentication::{Authenticator, authenticating};
pub use authorizer::{Authorizer, Verdict};
pub use identity::Identity;
pub use layers::as_identity;
pub use refusal::Refusal;
