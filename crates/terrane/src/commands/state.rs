//! `terrane state`: the state that Terrane keeps for a layer. What changes it goes through the same checks as a run: lineage,
//! serial, lock; every version stays.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use datastore::service::{Lock, Step};
use http::Method;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::service::{Call, Service};
use super::{Connection, get, render};
use crate::arguments::{Format, Output, Reach};

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// List the addresses of the resources in the state
    List(Listed),
    /// Show one resource of the state
    Show {
        #[command(flatten)]
        listed: Listed,
        /// The address, such as module.net.local_file.a
        address: String,
    },
    /// Print the whole state, secrets included; it is JSON as it is
    Pull {
        #[command(flatten)]
        whose: Whose,
        /// The version with this number instead of the current one
        #[arg(long)]
        number: Option<u64>,
    },
    /// Make the content of a file the state: same lineage, higher serial
    Push {
        #[command(flatten)]
        whose: Whose,
        /// The file, or - for standard input
        file: PathBuf,
        #[command(flatten)]
        told: Told,
    },
    /// List the versions of the state
    Versions(Listed),
    /// Make an older version the current one, as a new version
    Rollback {
        #[command(flatten)]
        whose: Whose,
        /// The number of the version, as `terrane state versions` lists it
        number: u64,
        #[command(flatten)]
        told: Told,
    },
    /// Show who holds the state
    Locks(Listed),
    /// Release a lock that was left behind; refused while a run is at work on the state
    Unlock {
        #[command(flatten)]
        whose: Whose,
        /// The id of the lock, as `terrane state locks` shows it
        id: String,
        #[command(flatten)]
        told: Told,
    },
}

#[derive(Args, Debug)]
struct Whose {
    /// The layer
    layer: String,
    #[command(flatten)]
    reach: Reach,
}

/// For verbs that show what there is.
#[derive(Args, Debug)]
struct Listed {
    #[command(flatten)]
    whose: Whose,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// For verbs that change something.
#[derive(Args, Debug)]
struct Told {
    /// Print what was done as data instead of a sentence; name prints the new version, or the lock
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    match options.verb {
        Verb::List(Listed { whose, output }) => Keeper::of(whose).await?.list(output).await,
        Verb::Show { listed: Listed { whose, output }, address } => {
            Keeper::of(whose).await?.show(&address, output).await
        }
        Verb::Pull { whose, number } => Keeper::of(whose).await?.pull(number).await,
        Verb::Push { whose, file, told } => Keeper::of(whose).await?.push(&file, told).await,
        Verb::Versions(Listed { whose, output }) => Keeper::of(whose).await?.versions(output).await,
        Verb::Rollback { whose, number, told } => Keeper::of(whose).await?.rollback(number, told).await,
        Verb::Locks(Listed { whose, output }) => Keeper::of(whose).await?.locks(output).await,
        Verb::Unlock { whose, id, told } => Keeper::of(whose).await?.unlock(&id, told).await,
    }
}

/// What was done, for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Deed<'a> {
    namespace: &'a str,
    layer: &'a str,
    /// The version that is the current one now.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    /// The version whose content that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    restored: Option<u64>,
    /// The lock that is no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    released: Option<&'a str>,
}

/// The state of one layer, through the service.
struct Keeper {
    connection: Connection,
    service: Service,
    layer: String,
}

impl Keeper {
    async fn of(whose: Whose) -> anyhow::Result<Self> {
        let connection = super::connection(&whose.reach).await?;
        super::layer(&connection.client, &connection.namespace, &whose.layer).await?;
        let service = Service::find(&connection).await?;
        Ok(Self { connection, service, layer: whose.layer })
    }

    fn deed(&self) -> Deed<'_> {
        let (namespace, layer) = (self.connection.namespace.as_str(), self.layer.as_str());
        Deed { namespace, layer, version: None, restored: None, released: None }
    }

    fn path<'a>(&'a self, rest: &[&'a str]) -> Vec<&'a str> {
        let layer = [self.connection.namespace.as_str(), "layers", self.layer.as_str(), "state"];
        [&layer[..], rest].concat()
    }

    async fn content(&self, version: Option<u64>) -> anyhow::Result<Vec<u8>> {
        let number = version.map(|version| version.to_string());
        let rest: &[&str] = match &number {
            Some(number) => &["versions", number.as_str()],
            None => &[],
        };
        let answer = self.service.get(&self.path(rest)).await?;
        Ok(answer.bytes().await.context("read the state")?.to_vec())
    }

    async fn document(&self, version: Option<u64>) -> anyhow::Result<Value> {
        // The parser's own words could quote a secret; the place is enough.
        serde_json::from_slice(&self.content(version).await?)
            .map_err(|error| anyhow::anyhow!("line {} of the state is not JSON", error.line()))
    }

    async fn list(&self, output: Output) -> anyhow::Result<()> {
        let document = self.document(None).await?;
        let mut addresses: Vec<String> =
            instances(&document).into_iter().map(|(address, _)| address).collect();
        addresses.sort();
        match output {
            Output::Json => println!("{}", serde_json::to_string_pretty(&addresses)?),
            Output::Yaml => print!("{}", serde_saphyr::to_string(&addresses)?),
            Output::Table | Output::Wide | Output::Name => {
                addresses.iter().for_each(|address| println!("{address}"))
            }
        }
        Ok(())
    }

    async fn show(&self, address: &str, output: Output) -> anyhow::Result<()> {
        let document = self.document(None).await?;
        let found = instances(&document).into_iter().find(|(known, _)| known == address);
        let Some((_, instance)) = found else {
            bail!(
                "the state of {}/{1} has no resource {address}; `terrane state list {1}` lists them",
                self.connection.namespace,
                self.layer
            );
        };
        match output {
            Output::Json => println!("{}", serde_json::to_string_pretty(instance)?),
            Output::Name => println!("{address}"),
            Output::Table | Output::Wide | Output::Yaml => {
                let attributes = instance.get("attributes").unwrap_or(instance);
                print!("# {address}\n{}", serde_saphyr::to_string(attributes)?);
            }
        }
        Ok(())
    }

    async fn pull(&self, version: Option<u64>) -> anyhow::Result<()> {
        use std::io::Write;
        let content = self.content(version).await?;
        let mut out = std::io::stdout().lock();
        out.write_all(&content).context("print the state")?;
        if !content.ends_with(b"\n") {
            out.write_all(b"\n").context("print the state")?;
        }
        Ok(())
    }

    async fn push(&self, file: &std::path::Path, told: Told) -> anyhow::Result<()> {
        let content = if file.as_os_str() == "-" {
            let mut content = Vec::new();
            std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut content)
                .context("read standard input")?;
            content
        } else {
            std::fs::read(file).with_context(|| format!("read {}", file.display()))?
        };
        let version = self.write(content).await?;
        let deed = Deed { version: Some(version), ..self.deed() };
        render::deed(told.output, &deed, &version.to_string(), || {
            format!("the state of {} is version {version} now", self.layer)
        })
    }

    async fn write(&self, content: Vec<u8>) -> anyhow::Result<u64> {
        let path = self.path(&[]);
        let call = Call { method: Method::PUT, path: &path, query: &[], body: Some(content) };
        let answer = self.service.send(call).await?;
        let version = answer.headers().get(datastore::header::STATE_VERSION);
        version.and_then(|value| value.to_str().ok()?.parse().ok()).with_context(|| {
            format!("the state of {0} is written, and the service does not say as which version; `terrane state versions {0}` does", self.layer)
        })
    }

    async fn rollback(&self, version: u64, told: Told) -> anyhow::Result<()> {
        let current = self.document(None).await?;
        let mut old = self.document(Some(version)).await?;
        let serial =
            current.get("serial").and_then(Value::as_u64).context("the current state has no serial")?;
        // The tools take a state for newer by its serial; going back is a step forward.
        let field = old.get_mut("serial").with_context(|| format!("version {version} has no serial"))?;
        *field = Value::from(serial + 1);
        let now = self.write(serde_json::to_vec_pretty(&old)?).await?;
        let deed = Deed { version: Some(now), restored: Some(version), ..self.deed() };
        render::deed(told.output, &deed, &now.to_string(), || {
            format!(
                "the state of {0} holds what version {version} held, as version {now}; `terrane plan {0}` shows what that means",
                self.layer
            )
        })
    }

    async fn versions(&self, output: Output) -> anyhow::Result<()> {
        let answer = self.service.get(&self.path(&["versions"])).await?;
        let mut steps: Vec<Step> = answer.json().await.context("read the versions")?;
        steps.reverse();
        if steps.is_empty() && matches!(output, Output::Table | Output::Wide) {
            eprintln!("Terrane keeps no state of layer {}/{}", self.connection.namespace, self.layer);
            return Ok(());
        }
        let now = Timestamp::now();
        let number = |step: &Step| step.head.as_ref().map_or_else(get::dash, |head| head.version.to_string());
        let cells = |step: &Step| {
            let head = step.head.as_ref();
            let serial = head.and_then(|head| head.serial);
            vec![
                number(step),
                serial.map_or_else(get::dash, |serial| serial.to_string()),
                get::age(step.at, now),
                step.by.clone(),
                head.map_or_else(get::dash, |head| head.sha256.short().to_owned()),
            ]
        };
        render::rows(output, &steps, &["VERSION", "SERIAL", "AGE", "BY", "SHA256"], cells, number)
    }

    async fn lock(&self) -> anyhow::Result<Option<Lock>> {
        let answer = self.service.get(&self.path(&["lock"])).await?;
        if answer.status() == http::StatusCode::NO_CONTENT {
            return Ok(None);
        }
        Ok(Some(answer.json().await.context("read the lock")?))
    }

    async fn locks(&self, output: Output) -> anyhow::Result<()> {
        let locks = Vec::from_iter(self.lock().await?);
        if locks.is_empty() && matches!(output, Output::Table | Output::Wide) {
            println!("the state of {} is not locked", self.layer);
            return Ok(());
        }
        let now = Timestamp::now();
        let cells = |lock: &Lock| {
            let operation = lock.info.get("Operation").and_then(Value::as_str).unwrap_or("-").to_owned();
            vec![lock.id.clone(), lock.by.clone(), get::age(lock.since, now), operation]
        };
        render::rows(output, &locks, &["ID", "BY", "SINCE", "OPERATION"], cells, |lock| lock.id.clone())
    }

    async fn unlock(&self, id: &str, told: Told) -> anyhow::Result<()> {
        if self.lock().await?.is_none() {
            bail!("the state of {}/{} is not locked", self.connection.namespace, self.layer);
        }
        let path = self.path(&["lock"]);
        let call = Call { method: Method::DELETE, path: &path, query: &[("id", id)], body: None };
        self.service.send(call).await?;
        let deed = Deed { released: Some(id), ..self.deed() };
        render::deed(told.output, &deed, id, || format!("released the lock {id} of {}", self.layer))
    }
}

/// Every resource instance of a state with its address. O(instances).
fn instances(document: &Value) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    for resource in list(document, "resources") {
        let word = |field: &str| resource.get(field).and_then(Value::as_str);
        let (Some(kind), Some(name)) = (word("type"), word("name")) else { continue };
        let data = if word("mode") == Some("data") { "data." } else { "" };
        let module = word("module").map(|module| format!("{module}.")).unwrap_or_default();
        for instance in list(resource, "instances") {
            let index = instance.get("index_key").map(|key| format!("[{key}]")).unwrap_or_default();
            found.push((format!("{module}{data}{kind}.{name}{index}"), instance));
        }
    }
    found
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn addresses_are_those_of_the_tools() {
        let state = json!({ "resources": [
            { "mode": "managed", "type": "a", "name": "b", "instances": [{ "index_key": 0 }, { "index_key": "x" }] },
            { "mode": "data", "type": "c", "name": "d", "module": "module.m", "instances": [{}] },
        ]});
        let addresses: Vec<String> = instances(&state).into_iter().map(|(address, _)| address).collect();
        assert_eq!(addresses, ["a.b[0]", "a.b[\"x\"]", "module.m.data.c.d"]);
    }
}
