//! What a request wants to do, as authorization sees it.

/// One question to the authorizer. Borrowed from the request: checking allocates nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes<'a> {
    pub verb: &'a str,
    pub target: Target<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    Resource(Resource<'a>),
    /// Anything that is not an object: `/healthz`, `/openapi/v3`.
    Path(&'a str),
}

/// Empty strings mean what they mean to Kubernetes: the core group, no subresource, no name, the cluster scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resource<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub name: &'a str,
    pub namespace: &'a str,
}

impl<'a> Attributes<'a> {
    pub fn resource(verb: &'a str, resource: Resource<'a>) -> Self {
        Attributes { verb, target: Target::Resource(resource) }
    }

    pub fn path(verb: &'a str, path: &'a str) -> Self {
        Attributes { verb, target: Target::Path(path) }
    }

    /// Role bindings of this namespace count beside the cluster's.
    pub fn namespace(&self) -> &'a str {
        match self.target {
            Target::Resource(resource) => resource.namespace,
            Target::Path(_) => "",
        }
    }
}
