//! The tower layer: one request in, the planned fault, one answer out.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::{Layer, Service, ServiceExt};

use super::{Actor, Aside, Event, Fault, Link, Passing, Refusal, Seam, Site, is_write, target};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Puts an actor's faults before a service.
#[derive(Clone, Debug)]
pub struct FaultLayer {
    actor: Actor,
    seam: Seam,
}

impl FaultLayer {
    pub(super) fn new(actor: Actor, seam: Seam) -> Self {
        Self { actor, seam }
    }
}

impl<S> Layer<S> for FaultLayer {
    type Service = Faulty<S>;

    fn layer(&self, inner: S) -> Faulty<S> {
        Faulty { actor: self.actor.clone(), seam: self.seam, inner, held: false }
    }
}

/// A service behind faults.
#[derive(Clone, Debug)]
pub struct Faulty<S> {
    actor: Actor,
    seam: Seam,
    inner: S,
    held: bool,
}

impl<S, B, R> Service<Request<B>> for Faulty<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: BodyExt + From<Vec<u8>> + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
    R: BodyExt + From<Vec<u8>> + Send + 'static,
    R::Data: Send,
    R::Error: Into<BoxError>,
{
    type Response = Response<R>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // The service is asked for readiness when the request is forwarded, which may be never.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let actor = this.actor.clone();
            if actor.is_dead() {
                return std::future::pending().await;
            }
            // What is on its way when its sender dies arrives all the same, and belongs to the history.
            let answer = this.handle(request).await;
            if actor.is_dead() { std::future::pending().await } else { answer }
        })
    }
}

impl<S> Faulty<S> {
    async fn handle<B, R>(mut self, request: Request<B>) -> Result<Response<R>, BoxError>
    where
        S: Service<Request<B>, Response = Response<R>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        B: BodyExt + From<Vec<u8>>,
        B::Error: Into<BoxError>,
        R: BodyExt + From<Vec<u8>>,
        R::Error: Into<BoxError>,
    {
        if is_watch(request.uri()) {
            return self.inner.oneshot(request).await.map_err(Into::into);
        }
        self.held = self.actor.is_held();
        self.actor.released().await;
        let under_way = self.actor.faults.under_way();
        let mut passing = taken(request).await?;
        let tamper = self.actor.faults.tamper_of(&self.actor.name);
        if let Some(tamper) = &tamper {
            for extra in tamper.before(&passing) {
                // What a planted request comes to concerns the plant alone.
                let _ = self.pass(extra, None).await;
            }
            tamper.request(&mut passing);
        }
        let result = self.pass(passing.clone(), tamper.as_deref()).await;
        drop(under_way);
        let mut response = match result {
            Passed::Answer(answer) => answer?,
            Passed::Crashed => {
                self.actor.die();
                return std::future::pending().await;
            }
        };
        if let Some(tamper) = &tamper {
            tamper.answer(&passing, response.status_mut());
        }
        Ok(response)
    }

    async fn pass<B, R>(&self, passing: Passing, tamper: Option<&dyn super::Tamper>) -> Passed<R>
    where
        S: Service<Request<B>, Response = Response<R>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        B: BodyExt + From<Vec<u8>>,
        R: BodyExt + From<Vec<u8>>,
        R::Error: Into<BoxError>,
    {
        let (site, fault) = self.actor.faults.meet(Site {
            actor: self.actor.name.to_string(),
            seam: self.seam,
            verb: passing.verb.clone(),
            target: target(self.seam, &passing.path),
            occurrence: 0,
        });
        let unsent = |status: Option<u16>| self.record(&site, &passing, status, Value::Null, fault);
        match fault {
            Some(Fault::Cut) => drop(self.actor.link.send_replace(Link::Cut)),
            Some(Fault::Hold) => {
                self.actor.link.send_replace(Link::Held);
                let _aside = Aside::new(&self.actor.faults);
                self.actor.released().await;
            }
            Some(
                Fault::Delay(_)
                | Fault::Repeat
                | Fault::Drop
                | Fault::Refuse(_)
                | Fault::CrashBefore
                | Fault::CrashAfter
                | Fault::LoseReply,
            )
            | None => {}
        }
        if self.actor.is_cut() {
            unsent(None);
            return Passed::Answer(Err("the connection broke before the request was sent".into()));
        }
        match fault {
            Some(Fault::Drop) => {
                unsent(None);
                return Passed::Answer(Err("the connection broke before the request was sent".into()));
            }
            Some(Fault::CrashBefore) => {
                unsent(None);
                return Passed::Crashed;
            }
            Some(Fault::Refuse(refusal)) => {
                unsent(None);
                return Passed::Answer(refused(self.seam, refusal));
            }
            Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
            Some(Fault::Repeat) => {
                let _ = self.forward(&site, &passing, tamper, fault).await;
            }
            Some(Fault::LoseReply | Fault::CrashAfter | Fault::Cut | Fault::Hold) | None => {}
        }
        let answer = self.forward(&site, &passing, tamper, fault).await;
        match fault {
            Some(Fault::LoseReply) => {
                Passed::Answer(Err("the connection broke before the answer arrived".into()))
            }
            Some(Fault::CrashAfter) => Passed::Crashed,
            Some(
                Fault::Delay(_)
                | Fault::Repeat
                | Fault::Drop
                | Fault::Refuse(_)
                | Fault::CrashBefore
                | Fault::Cut
                | Fault::Hold,
            )
            | None => Passed::Answer(answer),
        }
    }

    async fn forward<B, R>(
        &self,
        site: &Site,
        passing: &Passing,
        tamper: Option<&dyn super::Tamper>,
        fault: Option<Fault>,
    ) -> Result<Response<R>, BoxError>
    where
        S: Service<Request<B>, Response = Response<R>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        B: BodyExt + From<Vec<u8>>,
        R: BodyExt + From<Vec<u8>>,
        R::Error: Into<BoxError>,
    {
        let mut request = Request::builder()
            .method(passing.verb.as_str())
            .uri(passing.path.as_str())
            .body(B::from(passing.body.clone()))?;
        *request.headers_mut() = passing.headers.clone();
        let response = self.inner.clone().oneshot(request).await.map_err(Into::into)?;
        let status = Some(response.status().as_u16());
        if !is_write(&site.verb) {
            self.record(site, passing, status, Value::Null, fault);
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(Into::into)?.to_bytes().to_vec();
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        if let Some(tamper) = tamper {
            tamper.seen(passing, &answer);
        }
        self.record(site, passing, status, answer, fault);
        Ok(Response::from_parts(parts, R::from(body)))
    }

    fn record(
        &self,
        site: &Site,
        passing: &Passing,
        status: Option<u16>,
        answer: Value,
        fault: Option<Fault>,
    ) {
        let ours = |name: &HeaderName| name.as_str().starts_with("terrane-");
        let headers = passing.headers.iter().filter(|(name, _)| ours(name));
        let text = |value: &HeaderValue| value.to_str().unwrap_or_default().to_owned();
        self.actor.faults.record(Event {
            site: site.clone(),
            path: passing.path.clone(),
            headers: headers.map(|(name, value)| (name.to_string(), text(value))).collect(),
            sent: passing.json(),
            status,
            answer,
            fault,
            held: self.held || fault == Some(Fault::Hold),
        });
    }
}

enum Passed<R> {
    Answer(Result<Response<R>, BoxError>),
    Crashed,
}

/// A watch has no end to wait for, and what it tells is no write.
fn is_watch(uri: &http::Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|part| matches!(part, "watch=true" | "watch=1")))
}

async fn taken<B>(request: Request<B>) -> Result<Passing, BoxError>
where
    B: BodyExt,
    B::Error: Into<BoxError>,
{
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(Into::into)?.to_bytes().to_vec();
    let path = parts.uri.path_and_query().map_or_else(String::new, ToString::to_string);
    Ok(Passing { verb: parts.method.to_string(), path, headers: parts.headers, body })
}

fn refused<R: From<Vec<u8>>>(seam: Seam, refusal: Refusal) -> Result<Response<R>, BoxError> {
    let (code, reason) = refusal.answer();
    let message = format!("planned fault: {reason}");
    let body = match seam {
        Seam::Api => json!({
            "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code,
        }),
        Seam::Datastore => json!({ "message": message }),
    };
    Ok(Response::builder()
        .status(StatusCode::from_u16(code)?)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(R::from(body.to_string().into_bytes()))?)
}
