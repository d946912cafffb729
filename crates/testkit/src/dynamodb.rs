//! A server of DynamoDB's protocol on loopback, dynalite, which keeps its tables in memory: those in which S3 backends have their locks.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::process::{Guarded, Scratch};
use crate::tools::tool;

const START_LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);
/// What it prints before its address.
const LISTENS: &str = "listens on ";
/// The column by which backends know a lock.
const KEY: &str = "LockID";

/// A running server. It stops when this is dropped or the test process ends.
#[derive(Debug)]
pub struct DynamoDb {
    address: SocketAddr,
    // Dropped in this order: first what uses the directory.
    _process: Guarded,
    _scratch: Scratch,
}

impl DynamoDb {
    /// Starts one with a table for locks of this name.
    pub async fn start(table: &str) -> Result<Self> {
        let scratch = Scratch::new("terrane-dynamodb-")?;
        let log = scratch.path().join("dynamodb.log");
        let mut process = Guarded::start(&tool("dynalite")?, &[] as &[&str], log.clone())?;
        let limit = Instant::now() + START_LIMIT;
        let address = loop {
            process.ensure_running()?;
            let said = fs::read_to_string(&log).unwrap_or_default();
            let address = said.split_once(LISTENS).and_then(|(_, rest)| rest.split_once('\n'));
            if let Some(Ok(address)) = address.map(|(text, _)| text.parse()) {
                break address;
            }
            ensure!(
                Instant::now() < limit,
                "dynalite did not listen within {} s:\n{said}",
                START_LIMIT.as_secs()
            );
            tokio::time::sleep(POLL).await;
        };
        let server = Self { address, _process: process, _scratch: scratch };
        let definition = json!({
            "TableName": table, "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{ "AttributeName": KEY, "AttributeType": "S" }],
            "KeySchema": [{ "AttributeName": KEY, "KeyType": "HASH" }],
        });
        server.ask("CreateTable", &definition).await?;
        Ok(server)
    }

    /// What a client is told as `AWS_ENDPOINT_URL_DYNAMODB`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The keys of all that a table holds, in order.
    pub async fn keys(&self, table: &str) -> Result<Vec<String>> {
        let found = self.ask("Scan", &json!({ "TableName": table, "ConsistentRead": true })).await?;
        let items = found.pointer("/Items").and_then(Value::as_array).context("a table without items")?;
        let key = |item: &Value| item.pointer("/LockID/S").and_then(Value::as_str).map(str::to_owned);
        let mut keys: Vec<String> = items.iter().filter_map(key).collect();
        keys.sort();
        Ok(keys)
    }

    /// It wants requests to look signed, and takes any signature.
    async fn ask(&self, action: &str, body: &Value) -> Result<Value> {
        let (address, body) = (self.address, body.to_string());
        let time = Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
        let day = Timestamp::now().strftime("%Y%m%d");
        let request = format!(
            "POST / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\nx-amz-target: DynamoDB_20120810.{action}\r\nx-amz-date: {time}\r\ncontent-type: application/x-amz-json-1.0\r\nauthorization: AWS4-HMAC-SHA256 Credential=terrane-tests/{day}/us-east-1/dynamodb/aws4_request, SignedHeaders=host;x-amz-date, Signature=0\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(address).await.context("connecting to dynalite")?;
        stream.write_all(request.as_bytes()).await.with_context(|| format!("asking dynalite to {action}"))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.context("reading the answer of dynalite")?;
        let (head, content) =
            answer.split_once("\r\n\r\n").context("an answer without an end of its head")?;
        ensure!(head.starts_with("HTTP/1.1 200"), "dynalite did not {action}: {answer}");
        serde_json::from_str(content).with_context(|| format!("reading what dynalite says: {content}"))
    }
}
