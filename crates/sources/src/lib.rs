//! Git repositories as sources: which commits there are, which of them matter to a layer, and the files of one commit
//! as a bundle for a runner. The controller uses this crate: nothing here checks out, unpacks or executes what it reads. The one way out
//! is `Publication`, which serves a directory of files as a repository.

mod bundle;
mod credentials;
mod declared;
mod error;
mod footprint;
mod git;
mod glob;
pub mod hcl;
mod limits;
pub mod objects;
mod process;
mod publication;
mod refs;
mod relevance;
mod remote;
mod source;
pub mod terragrunt;

pub use bundle::Bundle;
pub use credentials::{Credentials, InvalidSecret, Login};
pub use declared::Module;
pub use error::{Class, Error};
pub use git::{Git, GitOptions, Mirror};
pub use limits::Limits;
pub use publication::{Protocol, Publication};
pub use refs::Refs;
pub use relevance::{Interest, Relevance};
pub use remote::{Addresses, FileUrls, NoAddress, resolve};
pub use source::{InvalidRewrite, Rewrite, Source, covers};
