//! An open watch: newline-separated events, read one at a time with a limit.

use anyhow::{Context, Result, bail};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::Value;

use crate::scope::LIMIT;

/// The events of one watch, in order.
#[derive(Debug)]
pub struct Events {
    body: Body,
    unread: Vec<u8>,
}

impl Events {
    pub(crate) fn new(body: Body) -> Self {
        Self { body, unread: Vec::new() }
    }

    /// The next event; an error when the watch ended instead.
    pub async fn next(&mut self) -> Result<Value> {
        self.next_or_end().await?.context("the watch ended before the event came")
    }

    /// The next event, `None` when the server ended the watch.
    pub async fn next_or_end(&mut self) -> Result<Option<Value>> {
        tokio::time::timeout(LIMIT, self.read()).await.context("no event came")?
    }

    /// The next event that is no bookmark.
    pub async fn next_change(&mut self) -> Result<Value> {
        loop {
            let event = self.next().await?;
            if event["type"] != "BOOKMARK" {
                return Ok(event);
            }
        }
    }

    /// The next change as `TYPE name`.
    pub async fn next_named(&mut self) -> Result<String> {
        let event = self.next_change().await?;
        let name = event.pointer("/object/metadata/name").and_then(Value::as_str).unwrap_or_default();
        Ok(format!("{} {name}", event["type"].as_str().unwrap_or_default()))
    }

    async fn read(&mut self) -> Result<Option<Value>> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return serde_json::from_slice(&line).map(Some).context("reading an event");
            }
            match self.body.frame().await {
                Some(frame) => {
                    if let Ok(data) = frame.context("reading a watch")?.into_data() {
                        self.unread.extend_from_slice(&data);
                    }
                }
                None if self.unread.is_empty() => return Ok(None),
                None => bail!("the watch ended inside an event"),
            }
        }
    }
}
