//! `terrane datastore keys`: which keys there are, a new one, and sealing everything with it. Works on the stored objects
//! themselves, beside a datastore that runs.

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use datastore::service::{Keyring, add_newest_key, reseal, uses};

use super::datastore::Kept;
use crate::environment;

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// List the keys, newest first, and how many objects each one seals
    List(Kept),
    /// Make a new key: a datastore seals with it from its next start on, and opens with all of them
    Add(Kept),
    /// Seal everything that an older key seals with the newest one; can be repeated, and run while the datastore runs
    Reseal(Kept),
}

pub(super) async fn run(options: Options) -> anyhow::Result<()> {
    match options.verb {
        Verb::List(kept) => list(&kept).await,
        Verb::Add(kept) => {
            let added = add_newest_key(&kept.keys)?;
            let file = added.file.unwrap_or_default();
            println!("made key {} in {}", added.id, file.display());
            println!("Keep a copy of it in a safe place, restart the datastore, then run `keys reseal`.");
            Ok(())
        }
        Verb::Reseal(kept) => {
            let keys = Keyring::load(&kept.keys)?;
            let newest = keys.infos().into_iter().next().context("there is no key")?;
            let objects = kept.place().open(environment::texts()).await?;
            let outcome = reseal(&objects, keys).await?;
            println!("{} of {} objects sealed anew with key {}", outcome.changed, outcome.objects, newest.id);
            Ok(())
        }
    }
}

async fn list(kept: &Kept) -> anyhow::Result<()> {
    let keys = Keyring::load(&kept.keys)?;
    let objects = kept.place().open(environment::texts()).await?;
    let mut uses = uses(&objects).await?;
    println!("{:<16}  {:>8}  FILE", "KEY", "OBJECTS");
    for key in keys.infos() {
        let count = uses.remove(&key.id).unwrap_or_default();
        println!("{:<16}  {count:>8}  {}", key.id, key.file.unwrap_or_default().display());
    }
    for (id, count) in &uses {
        println!("{id:<16}  {count:>8}  missing");
    }
    if let Some((id, count)) = uses.first_key_value() {
        bail!("{count} objects need key {id}, which is not in {}; restore it", kept.keys.display());
    }
    Ok(())
}
