//! Strategic merge patch: a merge patch that knows how the lists of built-in kinds are keyed, and that carries directives.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::Error;
use super::merge::without_nulls;
use crate::apply::{Json, Place, Schema, wording};
use crate::schema::wording::json_kind;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";

/// The answer to a strategic merge patch of a custom resource is not this function's: such patches are not accepted at all.
/// O(n log n) in the size of the two.
pub fn strategic(value: Value, patch: &Value, schema: &Schema<'_>) -> Result<Value, Error> {
    super::check_depth(&value)?;
    super::check_depth(patch)?;
    let Value::Object(patch) = patch else {
        return Err(Error::Malformed(format!(
            "json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            json_kind(patch)
        )));
    };
    let object = match value {
        Value::Object(object) => object,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err(Error::Malformed("invalid JSON document".to_owned()));
        }
    };
    merge_map(object, patch, &schema.root()).map(Value::Object)
}

/// How the schema says that a field is patched.
enum Strategy {
    Merge,
    Replace,
    /// Objects are merged, lists are replaced.
    Unsaid,
}

fn strategy(place: &Place<'_>) -> Result<Strategy, Error> {
    let strategies = place.node().map_or(&[][..], |node| node.patch_strategies.as_slice());
    let told: Vec<&str> =
        strategies.iter().map(String::as_str).filter(|strategy| *strategy != "retainKeys").collect();
    match told.as_slice() {
        [] | [""] => Ok(Strategy::Unsaid),
        ["merge"] => Ok(Strategy::Merge),
        ["replace"] => Ok(Strategy::Replace),
        _ => Err(Error::Unmergeable(format!("unexpected patch strategy: [{}]", strategies.join(" ")))),
    }
}

fn merge_map(
    mut object: Map<String, Value>,
    patch: &Map<String, Value>,
    place: &Place<'_>,
) -> Result<Map<String, Value>, Error> {
    match patch.get(DIRECTIVE).map(|directive| directive.as_str().unwrap_or_default()) {
        None => {}
        Some("replace") => return Ok(new_fields(patch)),
        Some("delete") => return Ok(Map::new()),
        Some(_) => {
            let directive = patch.get(DIRECTIVE).map(wording::plain).unwrap_or_default();
            let patch = wording::plain(&Value::Object(patch.clone()));
            return Err(Error::Unmergeable(format!("unknown patch type: {directive} in map: {patch}")));
        }
    }
    retain_keys(&mut object, patch)?;
    let ordered = merge_ordered_lists(&mut object, patch, place)?;
    for (name, patch) in patch {
        if ordered.contains(name.as_str()) || name == RETAIN_KEYS || list_of(name, SET_ORDER).is_some() {
            continue;
        }
        if name.starts_with(DELETE_FROM) {
            let list = list_of(name, DELETE_FROM).ok_or_else(bad_primitive_list)?;
            delete_from_list(&mut object, list, patch)?;
            continue;
        }
        if name.starts_with(SET_ORDER) {
            return Err(Error::Malformed("invalid patch format of setElementOrder list".to_owned()));
        }
        if patch.is_null() {
            object.shift_remove(name);
            continue;
        }
        let field = place.field(name).place;
        let merged = match (object.get_mut(name).map(Value::take), patch) {
            (Some(Value::Object(fields)), Value::Object(patch)) => match strategy(&field)? {
                Strategy::Replace => Some(Value::Object(new_fields(patch))),
                Strategy::Merge | Strategy::Unsaid => Some(Value::Object(merge_map(fields, patch, &field)?)),
            },
            (Some(Value::Array(items)), Value::Array(patch)) => match strategy(&field)? {
                Strategy::Merge => Some(Value::Array(merge_list(items, patch, &field)?)),
                Strategy::Replace | Strategy::Unsaid => Some(Value::Array(new_items(patch))),
            },
            (_, patch) => new_value(patch),
        };
        match merged {
            Some(merged) => {
                object.insert(name.clone(), merged);
            }
            None => {
                object.shift_remove(name);
            }
        }
    }
    Ok(object)
}

fn bad_primitive_list() -> Error {
    Error::Malformed("invalid patch format of primitive list".to_owned())
}

/// The list that a parallel key such as `$setElementOrder/containers` speaks of.
fn list_of<'k>(key: &'k str, prefix: &str) -> Option<&'k str> {
    key.strip_prefix(prefix)?.strip_prefix('/')
}

/// `$retainKeys` removes all fields but those it names, which must be all that the patch sets.
fn retain_keys(object: &mut Map<String, Value>, patch: &Map<String, Value>) -> Result<(), Error> {
    let bad = || Error::Malformed("invalid patch format of retainKeys".to_owned());
    let Some(keys) = patch.get(RETAIN_KEYS) else { return Ok(()) };
    let keys: BTreeSet<&str> = keys.as_array().ok_or_else(bad)?.iter().filter_map(Value::as_str).collect();
    let sets = |name: &str, value: &Value| {
        !value.is_null()
            && name != RETAIN_KEYS
            && !name.starts_with(DELETE_FROM)
            && !name.starts_with(SET_ORDER)
    };
    if patch.iter().any(|(name, value)| sets(name, value) && !keys.contains(name.as_str())) {
        return Err(bad());
    }
    object.retain(|name, _| keys.contains(name.as_str()));
    Ok(())
}

/// Merges the lists whose order the patch gives, and answers their names.
fn merge_ordered_lists<'p>(
    object: &mut Map<String, Value>,
    patch: &'p Map<String, Value>,
    place: &Place<'_>,
) -> Result<BTreeSet<&'p str>, Error> {
    let mut done = BTreeSet::new();
    for (key, order) in patch {
        let Some(name) = list_of(key, SET_ORDER) else { continue };
        let field = place.field(name).place;
        let merge_key = merge_key(&field);
        let order = list(order)?;
        let patched = patch.get(name).map(list).transpose()?;
        let live = object.get(name).map(list).transpose()?.map(<[Value]>::to_vec);
        check_order(patched.unwrap_or_default(), order, merge_key)?;
        let merged = match (live.clone(), patched) {
            (None, None) => continue,
            (Some(live), None) => live,
            (None, Some(patched)) => new_items(patched),
            (Some(live), Some(patched)) => match strategy(&field)? {
                Strategy::Merge => merge_list(live, patched, &field)?,
                Strategy::Replace | Strategy::Unsaid => new_items(patched),
            },
        };
        let merged = arrange(merged, order, &live.unwrap_or_default(), merge_key)?;
        object.insert(name.to_owned(), Value::Array(merged));
        done.insert(name);
    }
    Ok(done)
}

fn list(value: &Value) -> Result<&[Value], Error> {
    let wrong = || {
        Error::Unmergeable(format!(
            "expected a []interface {{}}, but received a {}",
            wording::type_name(value)
        ))
    };
    value.as_array().map(Vec::as_slice).ok_or_else(wrong)
}

fn merge_key<'p>(place: &'p Place<'_>) -> Option<&'p str> {
    place.node()?.patch_merge_key.as_deref().filter(|key| !key.is_empty())
}

/// What an item of a list is known by: its merge key's value, or itself.
fn identity(item: &Value, merge_key: Option<&str>) -> Result<Json, Error> {
    let Some(key) = merge_key else { return Ok(Json(item.clone())) };
    let Value::Object(fields) = item else {
        let kind = wording::type_name(item);
        return Err(Error::Unmergeable(format!(
            "expected a map[string]interface {{}}, but received a {kind}"
        )));
    };
    fields.get(key).cloned().map(Json).ok_or_else(|| {
        Error::Unmergeable(format!(
            "map: {} does not contain declared merge key: {key}",
            wording::plain(item)
        ))
    })
}

fn directive(item: &Value) -> Option<&Value> {
    item.get(DIRECTIVE)
}

/// The items of a patch must come in the order that it gives, which must name them all.
fn check_order(patched: &[Value], order: &[Value], merge_key: Option<&str>) -> Result<(), Error> {
    if order.is_empty() {
        return Ok(());
    }
    let mut rest = order.iter();
    for item in patched.iter().filter(|item| directive(item).is_none()) {
        loop {
            let Some(next) = rest.next() else {
                return Err(Error::Unmergeable(format!(
                    "The order in patch list:\n{}\n doesn't match {SET_ORDER} list:\n{}\n",
                    wording::plain(&Value::Array(patched.to_vec())),
                    wording::plain(&Value::Array(order.to_vec()))
                )));
            };
            if identity(item, merge_key)? == identity(next, merge_key)? {
                break;
            }
        }
    }
    Ok(())
}

fn merge_list(live: Vec<Value>, patch: &[Value], place: &Place<'_>) -> Result<Vec<Value>, Error> {
    if live.is_empty() && patch.is_empty() {
        return Ok(live);
    }
    match uniform(&live, patch)? {
        Some(Kind::List) => return Err(Error::inapplicable("lists of lists are not supported")),
        Some(Kind::Map) => {}
        Some(Kind::Scalar) | None => {
            let mut seen = BTreeSet::new();
            let all = live.iter().chain(patch).filter(|item| seen.insert(Json((*item).clone())));
            return arrange(all.cloned().collect(), patch, &live, None);
        }
    }
    let Some(key) = merge_key(place) else {
        return Err(Error::Unmergeable("cannot merge lists without merge key for struct".to_owned()));
    };
    let patch = Directed::read(patch, key)?;
    if patch.replace {
        let items: Vec<Value> = patch.items.into_iter().map(without_nulls).collect();
        return arrange(items.clone(), &[], &items, Some(key));
    }
    let mut live = live;
    live.retain(|item| item.get(key).is_none_or(|value| !patch.deleted.contains(&Json(value.clone()))));
    let mut merged: Vec<Value> = live.clone();
    let mut positions: BTreeMap<Json, usize> = BTreeMap::new();
    for (position, item) in merged.iter().enumerate() {
        if let Some(value) = item.get(key) {
            positions.entry(Json(value.clone())).or_insert(position);
        }
    }
    let item_place = place.item();
    for item in &patch.items {
        let id = identity(item, Some(key))?;
        let slot = positions.get(&id).and_then(|position| merged.get_mut(*position));
        match (slot, item) {
            (Some(slot), Value::Object(item)) => {
                if let Value::Object(fields) = slot.take() {
                    *slot = Value::Object(merge_map(fields, item, &item_place)?);
                }
            }
            (Some(_), _) => {}
            (None, item) => {
                positions.insert(id, merged.len());
                merged.extend(new_value(item));
            }
        }
    }
    let order: Vec<Value> = patch.items.into_iter().cloned().collect();
    arrange(merged, &order, &live, Some(key))
}

/// A list of a patch, its directives apart.
struct Directed<'p> {
    items: Vec<&'p Value>,
    deleted: BTreeSet<Json>,
    replace: bool,
}

impl<'p> Directed<'p> {
    fn read(patch: &'p [Value], key: &str) -> Result<Self, Error> {
        let mut out = Directed { items: Vec::new(), deleted: BTreeSet::new(), replace: false };
        for item in patch {
            match directive(item) {
                None => out.items.push(item),
                Some(Value::String(told)) if told == "delete" => {
                    out.deleted.insert(identity(item, Some(key))?);
                }
                Some(Value::String(told)) if told == "replace" => out.replace = true,
                Some(Value::String(told)) if told == "merge" => {
                    return Err(Error::Unmergeable(
                        "merging lists cannot yet be specified in the patch".to_owned(),
                    ));
                }
                Some(other) => {
                    let (told, item) = (wording::plain(other), wording::plain(item));
                    return Err(Error::Unmergeable(format!("unknown patch type: {told} in map: {item}")));
                }
            }
        }
        Ok(out)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Scalar,
    Map,
    List,
}

/// What the items of both lists are; they must all be of one type.
fn uniform(live: &[Value], patch: &[Value]) -> Result<Option<Kind>, Error> {
    let mut items = live.iter().chain(patch);
    let Some(first) = items.next() else { return Ok(None) };
    if items.any(|item| json_kind(item) != json_kind(first)) {
        let [live, patch] = [live, patch].map(|list| wording::plain(&Value::Array(list.to_vec())));
        return Err(Error::Unmergeable(format!("list element types are not identical: [{live} {patch}]")));
    }
    Ok(Some(match first {
        Value::Object(_) => Kind::Map,
        Value::Array(_) => Kind::List,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Kind::Scalar,
    }))
}

/// Orders a merged list: what `order` names in that order, and between it what only the live list has, each before the first
/// named item that it preceded there.
fn arrange(
    merged: Vec<Value>,
    order: &[Value],
    live: &[Value],
    merge_key: Option<&str>,
) -> Result<Vec<Value>, Error> {
    let ranks = |list: &[Value]| -> Result<BTreeMap<Json, usize>, Error> {
        let mut ranks = BTreeMap::new();
        for (rank, item) in list.iter().enumerate() {
            ranks.entry(identity(item, merge_key)?).or_insert(rank);
        }
        Ok(ranks)
    };
    let (ordered, live) = (ranks(order)?, ranks(live)?);
    let (mut named, mut others) = (Vec::new(), Vec::new());
    for item in merged {
        let id = identity(&item, merge_key)?;
        match ordered.get(&id) {
            Some(rank) => named.push((*rank, live.get(&id).copied(), item)),
            None => others.push((live.get(&id).copied(), item)),
        }
    }
    named.sort_by_key(|(rank, _, _)| *rank);
    others.sort_by_key(|(place, _)| *place);
    let mut out = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for (_, place, item) in named {
        while let Some((_, other)) =
            others.next_if(|(other, _)| other.is_some() && place.is_some() && *other < place)
        {
            out.push(other);
        }
        out.push(item);
    }
    out.extend(others.map(|(_, item)| item));
    Ok(out)
}

fn delete_from_list(object: &mut Map<String, Value>, name: &str, patch: &Value) -> Result<(), Error> {
    let (Some(Value::Array(items)), Value::Array(patch)) = (object.get_mut(name), patch) else {
        return Ok(());
    };
    match uniform(items, patch)? {
        Some(Kind::List) => return Err(Error::inapplicable("lists of lists are not supported")),
        Some(Kind::Map) => return Err(bad_primitive_list()),
        Some(Kind::Scalar) | None => {}
    }
    let deleted: BTreeSet<Json> = patch.iter().cloned().map(Json).collect();
    items.retain(|item| !deleted.contains(&Json(item.clone())));
    Ok(())
}

/// A value that replaces or adds: without nulls and without what was meant as a directive. `None` if all of it was.
fn new_value(patch: &Value) -> Option<Value> {
    match patch {
        Value::Object(fields) if fields.contains_key(DIRECTIVE) => None,
        Value::Object(fields) => Some(Value::Object(new_fields(fields))),
        Value::Array(items) => Some(Value::Array(new_items(items))),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(patch.clone()),
    }
}

fn new_fields(patch: &Map<String, Value>) -> Map<String, Value> {
    let directed = |name: &str| {
        name == DIRECTIVE
            || name == RETAIN_KEYS
            || name.starts_with(SET_ORDER)
            || name.starts_with(DELETE_FROM)
    };
    let fields = patch.iter().filter(|(name, value)| !value.is_null() && !directed(name));
    fields.filter_map(|(name, value)| Some((name.clone(), new_value(value)?))).collect()
}

fn new_items(patch: &[Value]) -> Vec<Value> {
    patch.iter().filter_map(new_value).collect()
}
