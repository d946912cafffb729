//! A person's request, passed on: the answer comes back as it is, streamed, whatever it says. Who the person is and what they may
//! do is settled before; nothing is tried again here, because the person can.

use http::Method;

use super::{Client, Error, chain};
use crate::header;

/// What is passed on.
#[derive(Debug)]
pub struct Relay<'a> {
    pub method: Method,
    /// With its query.
    pub path: String,
    /// For whom, in the history of what is changed.
    pub user: &'a str,
    /// The digest of the body, where there is one.
    pub sha256: Option<&'a str>,
    pub body: Option<reqwest::Body>,
}

impl Client {
    pub async fn relay(&self, relay: Relay<'_>) -> Result<reqwest::Response, Error> {
        use secrecy::ExposeSecret as _;
        let doing = || format!("pass on {} {}", relay.method, relay.path);
        let token = self.token.token().await?;
        // A name that no header can hold is left out, rather than the request.
        let user = http::HeaderValue::from_str(relay.user).ok();
        let mut builder = self
            .http
            .request(relay.method.clone(), format!("{}{}", self.base, relay.path))
            .bearer_auth(token.expose_secret());
        if let Some(user) = user {
            builder = builder.header(header::FOR_USER, user);
        }
        if let Some(sha256) = relay.sha256 {
            builder = builder.header(header::SHA256, sha256);
        }
        if let Some(body) = relay.body {
            builder = builder.body(body);
        }
        builder.send().await.map_err(|error| Error::Unreachable { doing: doing(), detail: chain(&error) })
    }
}
