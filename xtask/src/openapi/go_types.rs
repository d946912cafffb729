//! Protobuf numbers from Go struct tags: `Name string `json:"name" protobuf:"bytes,1,opt,name=name"``. The tags are the one place that says
//! both how a field is called in JSON and which number it has on the wire.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Package, module, directory in it.
const PACKAGES: &[(&str, &str, &str)] = &[
    ("io.k8s.api.core.v1", "api", "core/v1"),
    ("io.k8s.api.batch.v1", "api", "batch/v1"),
    ("io.k8s.api.coordination.v1", "api", "coordination/v1"),
    ("io.k8s.api.networking.v1", "api", "networking/v1"),
    ("io.k8s.api.rbac.v1", "api", "rbac/v1"),
    ("io.k8s.api.events.v1", "api", "events/v1"),
    ("io.k8s.api.authentication.v1", "api", "authentication/v1"),
    ("io.k8s.api.authorization.v1", "api", "authorization/v1"),
    (META, "apimachinery", "pkg/apis/meta/v1"),
];

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const CORE: &str = "io.k8s.api.core.v1";

const ROOTS: &[(&str, &[&str])] = &[
    (
        CORE,
        &["Namespace", "Node", "Pod", "Secret", "ConfigMap", "Event", "ServiceAccount", "Service", "Binding"],
    ),
    ("io.k8s.api.batch.v1", &["Job"]),
    ("io.k8s.api.coordination.v1", &["Lease"]),
    ("io.k8s.api.networking.v1", &["Ingress"]),
    ("io.k8s.api.events.v1", &["Event"]),
    ("io.k8s.api.rbac.v1", &["Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"]),
    ("io.k8s.api.authentication.v1", &["TokenReview", "TokenRequest", "SelfSubjectReview"]),
    (
        "io.k8s.api.authorization.v1",
        &[
            "SubjectAccessReview",
            "SelfSubjectAccessReview",
            "LocalSubjectAccessReview",
            "SelfSubjectRulesReview",
        ],
    ),
    (META, &["DeleteOptions"]),
];

/// A name in a package.
type Name = (String, String);

struct Field {
    number: u32,
    /// Empty where the fields of the type stand in for it.
    json: String,
    go_type: String,
}

#[derive(Default)]
struct Types {
    structs: HashMap<Name, Vec<Field>>,
    others: HashMap<Name, String>,
}

/// One line a message: its name, then `number:name=type` of each field.
pub fn messages(modules: &Path, version: &str) -> Result<String> {
    let mut types = Types::default();
    for (package, module, directory) in PACKAGES {
        let directory = modules.join(format!("k8s.io/{module}@{version}")).join(directory);
        let files = std::fs::read_dir(&directory)
            .with_context(|| format!("{} cannot be read; fetch the module first", directory.display()))?;
        for file in files {
            let path = file?.path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            if name.starts_with("types") && path.extension().is_some_and(|e| e == "go") {
                types.read(package, &std::fs::read_to_string(&path)?);
            }
        }
    }
    let roots = ROOTS
        .iter()
        .flat_map(|(package, kinds)| kinds.iter().map(|kind| ((*package).to_owned(), (*kind).to_owned())));
    let mut open: Vec<Name> = roots.collect();
    let mut lines = BTreeMap::new();
    while let Some(name) = open.pop() {
        let full = format!("{}.{}", name.0, name.1);
        if lines.contains_key(&full) {
            continue;
        }
        let fields = types.structs.get(&name).with_context(|| format!("{full} is not among the types"))?;
        let mut line = full.clone();
        for field in fields {
            let optional = if field.go_type.starts_with('*') { "?" } else { "" };
            let kind = types.kind(&name.0, &field.go_type, &mut open)?;
            line.push_str(&format!(" {}:{}={optional}{kind}", field.number, field.json));
        }
        lines.insert(full, line);
    }
    Ok(lines.into_values().map(|line| line + "\n").collect())
}

impl Types {
    fn read(&mut self, package: &str, source: &str) {
        let mut lines = source.lines();
        while let Some(line) = lines.next() {
            let Some((name, rest)) = line.strip_prefix("type ").and_then(|l| l.split_once(' ')) else {
                continue;
            };
            let name = (package.to_owned(), name.to_owned());
            if !rest.starts_with("struct") {
                let rest = rest.split("//").next().unwrap_or_default().trim();
                self.others.insert(name, rest.to_owned());
                continue;
            }
            let body = if rest.contains('}') {
                Vec::new()
            } else {
                lines.by_ref().take_while(|line| *line != "}").filter_map(field).collect()
            };
            self.structs.insert(name, body);
        }
    }

    /// The code of a type, and the message it leads to.
    fn kind(&self, package: &str, go_type: &str, open: &mut Vec<Name>) -> Result<String> {
        let go_type = go_type.trim_start_matches('*');
        if let Some(item) = go_type.strip_prefix("[]").filter(|item| *item != "byte") {
            return Ok(format!("*{}", self.kind(package, item, open)?));
        }
        if let Some((_, value)) = go_type.strip_prefix("map[").and_then(|rest| rest.split_once(']')) {
            return Ok(format!("%{}", self.kind(package, value, open)?));
        }
        let code = match go_type {
            "string" | "types.UID" | "types.NodeName" => "s",
            "[]byte" => "b",
            "int" | "int32" | "int64" | "uint64" | "uint32" | "byte" | "metav1.Duration" => "i",
            "bool" => "t",
            "float64" => "f",
            "Time" | "metav1.Time" => "T",
            "MicroTime" | "metav1.MicroTime" => "M",
            "resource.Quantity" => "Q",
            "intstr.IntOrString" => "I",
            "runtime.RawExtension" | "FieldsV1" | "metav1.FieldsV1" => "R",
            _ => "",
        };
        if !code.is_empty() {
            return Ok(code.to_owned());
        }
        let name = match go_type.split_once('.') {
            None => (package.to_owned(), go_type.to_owned()),
            Some(("v1" | "corev1", name)) => (CORE.to_owned(), name.to_owned()),
            Some(("metav1", name)) => (META.to_owned(), name.to_owned()),
            Some(("authenticationv1", name)) => ("io.k8s.api.authentication.v1".to_owned(), name.to_owned()),
            Some(_) => bail!("the Go type {go_type} of {package} is not known here"),
        };
        if self.structs.contains_key(&name) {
            let code = format!("m{}.{}", name.0, name.1);
            open.push(name);
            return Ok(code);
        }
        let base = self
            .others
            .get(&name)
            .with_context(|| format!("the Go type {go_type} of {package} is not known here"))?;
        // A named list is a message of its own, with its elements as field 1.
        match base.strip_prefix("[]") {
            Some(item) => Ok(format!("x{}", self.kind(&name.0, item, open)?)),
            None => self.kind(&name.0, base, open),
        }
    }
}

/// A line of a struct with a protobuf tag; other lines have no number.
fn field(line: &str) -> Option<Field> {
    let (declared, tags) = line.strip_prefix('\t').filter(|line| !line.starts_with("//"))?.split_once('`')?;
    let go_type = declared.split_whitespace().last()?.to_owned();
    let tag = |key: &str| tags.split_once(&format!("{key}:\""))?.1.split('"').next();
    let number = tag("protobuf")?.split(',').nth(1)?.parse().ok()?;
    let json = tag("json").unwrap_or_default().split(',').next().unwrap_or_default().to_owned();
    Some(Field { number, json, go_type })
}
