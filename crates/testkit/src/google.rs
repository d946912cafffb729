//! A stand-in for Google Cloud Storage on loopback: its XML API as its reference describes it, as far as the datastore uses it. It is ours
//! because the one server for tests that others offer, fake-gcs-server, refuses the plain PUT of that API ("invalid uploadType").
//! So it shows that a bucket of Google's is asked in the right way, not that Google's servers answer as expected.

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use tokio::net::TcpListener;

const BUCKET: &str = "artefacts";
/// Every part but the last has at least so many bytes.
const PART_MINIMUM: usize = 5 * 1024 * 1024;
const BODY_LIMIT: usize = 64 * 1024 * 1024;
const GENERATION_MATCH: &str = "x-goog-if-generation-match";
const COPY_SOURCE: &str = "x-goog-copy-source";

/// A running server with one bucket. It stops, and what it holds goes, when this is dropped.
#[derive(Debug)]
pub struct GoogleServer {
    address: SocketAddr,
    token: String,
    task: tokio::task::JoinHandle<()>,
}

impl GoogleServer {
    pub async fn start() -> Result<Self> {
        let token = format!("{:032x}", rand::random::<u128>());
        let server = Arc::new(Server { token: token.clone(), bucket: Mutex::default() });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("listening as Google")?;
        let address = listener.local_addr().context("reading the address")?;
        let service = Router::new().fallback(answer).with_state(server);
        #[expect(clippy::disallowed_methods, reason = "it ends with the test that made it")]
        let task = tokio::spawn(async move {
            let _ = axum::serve(listener, service).await;
        });
        Ok(Self { address, token, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a prefix in its bucket.
    pub fn url(&self, prefix: &str) -> String {
        format!("gs://{BUCKET}/{prefix}")
    }

    /// What a client finds in its environment; `address` is the server's, or that of a gate.
    pub fn environment(&self, address: SocketAddr) -> Vec<(String, String)> {
        [
            ("GOOGLE_BASE_URL", format!("http://{address}")),
            ("GOOGLE_BEARER_TOKEN", self.token.clone()),
            ("GOOGLE_ALLOW_HTTP", "true".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}

impl Drop for GoogleServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Server {
    token: String,
    bucket: Mutex<Bucket>,
}

#[derive(Default)]
struct Bucket {
    objects: BTreeMap<String, Object>,
    uploads: HashMap<String, BTreeMap<u32, Bytes>>,
    /// How many generations there have been.
    generations: u64,
}

#[derive(Clone)]
struct Object {
    content: Bytes,
    generation: u64,
    modified: Timestamp,
}

/// A refusal as the XML API words it.
struct Refused(StatusCode, &'static str);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, format!("<Error><Code>{}</Code></Error>", self.1)).into_response()
    }
}

async fn answer(State(server): State<Arc<Server>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let content = match axum::body::to_bytes(body, BODY_LIMIT).await {
        Ok(content) => content,
        Err(_) => return Refused(StatusCode::BAD_REQUEST, "IncompleteBody").into_response(),
    };
    let expected = format!("Bearer {}", server.token);
    if head.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()) != Some(&*expected) {
        return Refused(StatusCode::UNAUTHORIZED, "AuthenticationRequired").into_response();
    }
    let path = decoded(head.uri.path());
    let (bucket, name) = path.trim_start_matches('/').split_once('/').unwrap_or((path.trim_matches('/'), ""));
    if bucket != BUCKET {
        return Refused(StatusCode::NOT_FOUND, "NoSuchBucket").into_response();
    }
    let query: HashMap<String, String> = head
        .uri
        .query()
        .unwrap_or_default()
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (decoded(name), decoded(value)))
        .collect();
    let mut bucket = server.bucket.lock().unwrap_or_else(PoisonError::into_inner);
    let outcome = match (head.method, name.is_empty()) {
        (Method::GET, true) => Ok(bucket.list(query.get("prefix").map_or("", String::as_str))),
        (Method::GET | Method::HEAD, false) => bucket.get(name, &head.headers),
        (Method::PUT, false) => bucket.put(name, &query, &head.headers, content),
        (Method::POST, false) => bucket.post(name, &query, &content),
        (Method::DELETE, false) => bucket.delete(name, &query),
        _ => Err(Refused(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed")),
    };
    outcome.unwrap_or_else(IntoResponse::into_response)
}

impl Bucket {
    fn list(&self, prefix: &str) -> Response {
        let found: String = self
            .objects
            .iter()
            .filter(|(name, _)| name.starts_with(prefix))
            .map(|(name, object)| {
                format!(
                    "<Contents><Key>{name}</Key><Size>{}</Size><LastModified>{}</LastModified><ETag>\"{}\"</ETag></Contents>",
                    object.content.len(),
                    object.modified,
                    object.generation
                )
            })
            .collect();
        format!("<ListBucketResult><Name>{BUCKET}</Name>{found}</ListBucketResult>").into_response()
    }

    fn get(&self, name: &str, headers: &HeaderMap) -> Result<Response, Refused> {
        let object = self.objects.get(name).ok_or(Refused(StatusCode::NOT_FOUND, "NoSuchKey"))?;
        let size = object.content.len();
        let range = headers
            .get(header::RANGE)
            .and_then(|value| value.to_str().ok()?.strip_prefix("bytes=")?.split_once('-'))
            .and_then(|(start, end)| Some((start.parse::<usize>().ok()?, end.parse::<usize>().ok()? + 1)));
        let (start, end) = range.map_or((0, size), |(start, end)| (start, end.min(size)));
        if start > end {
            return Err(Refused(StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange"));
        }
        let status = if range.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
        let content = object.content.slice(start..end);
        let length = [(header::CONTENT_LENGTH, content.len())];
        let mut response = (status, named(object), length, Body::from(content)).into_response();
        if range.is_some()
            && let Ok(value) = format!("bytes {start}-{}/{size}", end.saturating_sub(1)).parse()
        {
            response.headers_mut().insert(header::CONTENT_RANGE, value);
        }
        Ok(response)
    }

    fn put(
        &mut self,
        name: &str,
        query: &HashMap<String, String>,
        headers: &HeaderMap,
        content: Bytes,
    ) -> Result<Response, Refused> {
        if let Some(upload) = query.get("uploadId") {
            let number = query.get("partNumber").and_then(|number| number.parse().ok());
            let number = number.ok_or(Refused(StatusCode::BAD_REQUEST, "InvalidArgument"))?;
            let parts = self.uploads.get_mut(upload).ok_or(Refused(StatusCode::NOT_FOUND, "NoSuchUpload"))?;
            parts.insert(number, content);
            return Ok([(header::ETAG, format!("\"{number}\""))].into_response());
        }
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let generation = self.objects.get(name).map_or(0, |object| object.generation);
        match text(GENERATION_MATCH).map(str::parse::<u64>) {
            None => {}
            Some(Ok(wanted)) if wanted == generation => {}
            Some(_) => return Err(Refused(StatusCode::PRECONDITION_FAILED, "PreconditionFailed")),
        }
        let content = match text(COPY_SOURCE).map(decoded) {
            None => content,
            Some(source) => {
                let source =
                    source.trim_start_matches('/').strip_prefix(&format!("{BUCKET}/")).map(str::to_owned);
                let object = source.and_then(|source| self.objects.get(&source));
                object.ok_or(Refused(StatusCode::NOT_FOUND, "NoSuchKey"))?.content.clone()
            }
        };
        Ok(named(self.keep(name, content)).into_response())
    }

    fn post(
        &mut self,
        name: &str,
        query: &HashMap<String, String>,
        body: &[u8],
    ) -> Result<Response, Refused> {
        if query.contains_key("uploads") {
            let id = format!("{:032x}", rand::random::<u128>());
            let text = format!(
                "<InitiateMultipartUploadResult><Bucket>{BUCKET}</Bucket><Key>{name}</Key><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
            );
            self.uploads.insert(id, BTreeMap::new());
            return Ok(text.into_response());
        }
        let upload = query.get("uploadId").and_then(|id| self.uploads.remove(id));
        let parts = upload.ok_or(Refused(StatusCode::NOT_FOUND, "NoSuchUpload"))?;
        let named_parts = String::from_utf8_lossy(body).matches("<PartNumber>").count();
        let small = parts.values().rev().skip(1).any(|part| part.len() < PART_MINIMUM);
        if named_parts != parts.len() || small {
            return Err(Refused(StatusCode::BAD_REQUEST, "InvalidPart"));
        }
        let content: Vec<u8> = parts.values().flat_map(|part| part.iter().copied()).collect();
        let generation = self.keep(name, content.into()).generation;
        let text = format!(
            "<CompleteMultipartUploadResult><Key>{name}</Key><ETag>\"{generation}\"</ETag></CompleteMultipartUploadResult>"
        );
        Ok(text.into_response())
    }

    fn delete(&mut self, name: &str, query: &HashMap<String, String>) -> Result<Response, Refused> {
        let is_gone = match query.get("uploadId") {
            Some(upload) => self.uploads.remove(upload).is_some(),
            None => self.objects.remove(name).is_some(),
        };
        let done = StatusCode::NO_CONTENT.into_response();
        if is_gone { Ok(done) } else { Err(Refused(StatusCode::NOT_FOUND, "NoSuchKey")) }
    }

    fn keep(&mut self, name: &str, content: Bytes) -> &Object {
        self.generations += 1;
        let object = Object { content, generation: self.generations, modified: Timestamp::now() };
        let place = self.objects.entry(name.to_owned()).or_insert_with(|| object.clone());
        *place = object;
        place
    }
}

/// What an answer says of an object.
fn named(object: &Object) -> [(&'static str, String); 3] {
    [
        ("etag", format!("\"{}\"", object.generation)),
        ("x-goog-generation", object.generation.to_string()),
        ("last-modified", object.modified.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()),
    ]
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
