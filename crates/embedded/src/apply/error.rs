//! Why an applied object was refused, in the words and with the codes of kube-apiserver.

use std::fmt;

use super::path::Path;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Others own fields that the object would change.
    #[error("{0}")]
    Conflict(Conflicts),
    /// The request itself is wrong.
    #[error("{0}")]
    BadRequest(String),
    #[error(
        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch"
    )]
    ManagerRequired,
    /// The object does not fit its schema, or the live one cannot be reckoned with. Kubernetes answers 500 here too.
    #[error("{0}")]
    Unmergeable(String),
}

/// Every field in conflict, grouped by manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflicts(pub Vec<Conflict>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The owner as messages name it: `"kubectl-edit" using v1`.
    pub owner: String,
    pub path: Path,
}

/// One entry of a status's `details.causes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    pub reason: &'static str,
    pub message: String,
    pub field: String,
}

impl Error {
    /// The HTTP status.
    pub fn code(&self) -> u16 {
        match self {
            Error::Conflict(_) => 409,
            Error::BadRequest(_) => 400,
            Error::ManagerRequired => 422,
            Error::Unmergeable(_) => 500,
        }
    }

    /// A status's `reason`, empty where Kubernetes gives none.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Conflict(_) => "Conflict",
            Error::BadRequest(_) => "BadRequest",
            Error::ManagerRequired => "Invalid",
            Error::Unmergeable(_) => "",
        }
    }

    pub fn causes(&self) -> Vec<Cause> {
        match self {
            Error::Conflict(Conflicts(conflicts)) => conflicts.iter().map(Conflict::cause).collect(),
            Error::ManagerRequired => vec![Cause {
                reason: "FieldValueRequired",
                message: "Required value: is required for apply patch".to_owned(),
                field: "fieldManager".to_owned(),
            }],
            Error::BadRequest(_) | Error::Unmergeable(_) => Vec::new(),
        }
    }
}

impl Conflict {
    fn cause(&self) -> Cause {
        Cause {
            reason: "FieldManagerConflict",
            message: format!("conflict with {}", self.owner),
            field: self.path.to_string(),
        }
    }
}

impl fmt::Display for Conflicts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice() {
            return write!(out, "Apply failed with 1 conflict: conflict with {}: {}", only.owner, only.path);
        }
        write!(out, "Apply failed with {} conflicts: ", self.0.len())?;
        let mut owner = None;
        for conflict in &self.0 {
            if owner != Some(&conflict.owner) {
                let line = if owner.is_some() { "\n" } else { "" };
                write!(out, "{line}conflicts with {}:", conflict.owner)?;
                owner = Some(&conflict.owner);
            }
            write!(out, "\n- {}", conflict.path)?;
        }
        Ok(())
    }
}
