//! Which namespaces a role looks after: all of them, by rights over the cluster, or a few, by rights in each of these alone.

use std::collections::BTreeSet;

use api::text::ObjectName;
use clap::Args;
use controllers::Namespaces;

#[derive(Args, Debug, Clone, Default)]
pub(crate) struct Area {
    /// Look after these namespaces and no others, by rights in each of them instead of over the whole cluster
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', env = "TERRANE_NAMESPACES")]
    namespaces: Vec<ObjectName>,
}

impl Area {
    /// The namespaces that were named; none, if it is all of them.
    pub(crate) fn named(&self) -> Option<BTreeSet<String>> {
        let names: BTreeSet<String> = self.namespaces.iter().map(|name| name.to_string()).collect();
        (!names.is_empty()).then_some(names)
    }

    pub(crate) fn namespaces(&self) -> Namespaces {
        self.named().map_or(Namespaces::All, Namespaces::These)
    }
}
