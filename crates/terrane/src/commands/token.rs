//! `terrane token`: credentials of programs for the HTTP service of one's own machine. What is kept of one is its digest.

use std::collections::BTreeSet;

use ::server::credential::{Credentials, Grant, Kind, Scope};
use anyhow::{Context, bail};
use api::text::{ObjectName, Span};
use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use secrecy::ExposeSecret;
use serde::Serialize;

use super::{get, login, render};
use crate::arguments::{Output, Target};

/// Make, list and revoke tokens by which programs use the HTTP service of `terrane up`
///
/// A token is shown once, when it is made; Terrane keeps its sha256 in a Secret of terrane-system. It is sent as
/// `Authorization: Bearer TOKEN`, and what it does is recorded as terrane:token:NAME. On a cluster there are none: programs use tokens of
/// ServiceAccounts there, and roles say what they may.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  A token that may look at everything for 90 days:
      TOKEN=$(terrane token create dashboard)
      curl -H \"Authorization: Bearer $TOKEN\" http://127.0.0.1:8080/api/v1/layers
  One that may ask for plans and approve them in one namespace, for a day:
      terrane token create ci --scope read,write,approve --namespaces team-a --expires 24h
  Which there are, and an end to one:
      terrane token list
      terrane token revoke ci")]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Make a token and print it, the only time that it can be seen
    Create(Create),
    /// Show the names, scopes and ends of tokens
    List(List),
    /// End a token at once
    Revoke(Revoke),
}

#[derive(Args, Debug)]
struct Create {
    /// What it is called in the list and in the history
    name: ObjectName,
    /// What it may: read (all but states), write (ask for plans, suspend, cancel), approve (approve and reject plans), state (read and
    /// change states, which hold every secret)
    #[arg(long, value_name = "SCOPE,…", value_delimiter = ',', default_value = "read")]
    scope: Vec<Scope>,
    /// Only in these namespaces; without it, in all
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    namespaces: Vec<ObjectName>,
    /// How long it works, at most a year
    #[arg(long, value_name = "SPAN", default_value = "2160h")]
    expires: Span,
    #[command(flatten)]
    target: Target,
}

#[derive(Args, Debug)]
struct List {
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    target: Target,
}

#[derive(Args, Debug)]
struct Revoke {
    /// The tokens
    #[arg(required = true)]
    names: Vec<ObjectName>,
    #[command(flatten)]
    target: Target,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    match options.verb {
        Verb::Create(options) => create(options).await,
        Verb::List(options) => list(options).await,
        Verb::Revoke(options) => revoke(options).await,
    }
}

async fn credentials(target: &Target) -> anyhow::Result<(Credentials, String)> {
    let (client, _) = super::connect(target).await?;
    let url = login::own_service(&client).await?;
    Ok((Credentials::new(&client), url))
}

async fn create(options: Create) -> anyhow::Result<()> {
    let (credentials, url) = credentials(&options.target).await?;
    let life = SignedDuration::try_from(options.expires.get()).context("use --expires")?;
    let grant = Grant {
        user: format!("terrane:token:{}", options.name),
        scopes: options.scope.into_iter().collect(),
        namespaces: options.namespaces.iter().map(ToString::to_string).collect::<BTreeSet<_>>(),
        expires: Timestamp::now().checked_add(life).context("use --expires")?,
    };
    let token = credentials.make_token(&options.name, &grant).await?;
    eprintln!(
        "token {} works until {} and is not shown again; send it as `Authorization: Bearer TOKEN` to {url}",
        options.name, grant.expires
    );
    println!("{}", token.expose_secret());
    Ok(())
}

#[derive(Serialize)]
struct Row {
    name: String,
    scopes: Vec<&'static str>,
    namespaces: BTreeSet<String>,
    created: Option<Timestamp>,
    expires: Timestamp,
}

async fn list(options: List) -> anyhow::Result<()> {
    let (credentials, _) = credentials(&options.target).await?;
    let rows: Vec<Row> = credentials
        .list(Kind::Token)
        .await?
        .into_iter()
        .map(|kept| Row {
            name: kept.id,
            scopes: kept.grant.scopes.iter().map(|scope| scope.as_str()).collect(),
            namespaces: kept.grant.namespaces,
            created: kept.created,
            expires: kept.grant.expires,
        })
        .collect();
    if rows.is_empty() && matches!(options.output, Output::Table | Output::Wide) {
        eprintln!("there are no tokens; `terrane token create NAME` makes one");
        return Ok(());
    }
    let now = Timestamp::now();
    let cells = |row: &Row| {
        let namespaces: Vec<&str> = row.namespaces.iter().map(String::as_str).collect();
        let ends = if row.expires <= now { "expired".to_owned() } else { row.expires.to_string() };
        vec![
            row.name.clone(),
            row.scopes.join(","),
            if namespaces.is_empty() { "all".to_owned() } else { namespaces.join(",") },
            row.created.map_or_else(get::dash, |time| get::age(time, now)),
            ends,
        ]
    };
    let header = &["NAME", "SCOPES", "NAMESPACES", "AGE", "EXPIRES"];
    render::rows(options.output, &rows, header, cells, |row| format!("tokens/{}", row.name))
}

async fn revoke(options: Revoke) -> anyhow::Result<()> {
    let (credentials, _) = credentials(&options.target).await?;
    for name in options.names {
        if !credentials.end(Kind::Token, name.as_str()).await? {
            bail!("there is no token {name}; `terrane token list` shows those that there are");
        }
        println!("token {name} no longer works");
    }
    Ok(())
}
