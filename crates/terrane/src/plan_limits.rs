//! For how long plans count, as the administrator says it: flags of every role that decides on layers.

use std::time::Duration;

use clap::Args;

#[derive(Args, Debug, Clone)]
pub(crate) struct PlanLimits {
    /// How old a plan may be when it is applied; an older one is made anew, whoever approved it
    #[arg(long, value_name = "SECONDS", default_value = "86400", value_parser = clap::value_parser!(u64).range(60..))]
    plan_expiry: u64,
}

impl PlanLimits {
    pub(crate) fn expiry(&self) -> Duration {
        Duration::from_secs(self.plan_expiry)
    }
}
