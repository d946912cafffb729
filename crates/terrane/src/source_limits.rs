//! How large repositories may be, as the administrator says it: flags of every role that reads repositories.

use clap::Args;

const MIB: u64 = 1024 * 1024;

#[derive(Args, Debug, Clone, Copy)]
pub(crate) struct SourceLimits {
    /// How much a repository may take with its whole history; a larger one is told on the layers that use it
    #[arg(long, value_name = "MIB", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub(crate) max_repository_size: u64,
    /// How much the files of one commit may take
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub(crate) max_bundle_size: u64,
}

impl SourceLimits {
    pub(crate) fn limits(self) -> sources::Limits {
        sources::Limits {
            mirror: self.max_repository_size.saturating_mul(MIB),
            bytes: self.max_bundle_size.saturating_mul(MIB),
            ..sources::Limits::default()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        limits: SourceLimits,
    }

    #[test]
    fn the_flags_default_to_the_limits_of_the_source() {
        assert_eq!(Program::parse_from(["x"]).limits.limits(), sources::Limits::default());
        let set = Program::parse_from(["x", "--max-repository-size", "2", "--max-bundle-size", "1"])
            .limits
            .limits();
        assert_eq!((set.mirror, set.bytes), (2 * MIB, MIB));
        assert!(Program::try_parse_from(["x", "--max-repository-size", "0"]).is_err());
    }
}
