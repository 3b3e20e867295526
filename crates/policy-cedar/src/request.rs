//! An act in the words of the schema.
//!
//! Invariants: whatever of a payload is no scalar is there, but equal to nothing, so a policy that
//! looks at it fails and the act is denied; null is absent.

use std::collections::{HashMap, HashSet};
use std::str::FromStr;

use cedar_policy::{
    Context, Entities, Entity, EntityId, EntityTypeName, EntityUid, Request,
    RestrictedExpression as Value,
};
use serde_json::Value as Json;
use steadfast_core::policy::{Act, Classes, Doing};

/// Most fields of a payload: an act with more is not decided by looking at some of them.
const FIELDS_MAX: usize = 1000;

/// Why an act cannot be put in these words.
type Why = String;

pub(crate) fn of(act: &Act) -> Result<(Request, Entities), Why> {
    let (action, kind, resource) = match &act.doing {
        Doing::Admit => ("admit", "CommandType", &act.command_type),
        Doing::Effect { effect_type, .. } => ("effect", "Operation", effect_type),
        Doing::Call { operation, .. } => ("call", "Operation", operation),
    };
    let principal = uid("Principal", &act.principal)?;
    let grants = HashMap::from([("grants".to_owned(), strings(&act.grants))]);
    let entity = Entity::new(principal.clone(), grants, HashSet::new()).map_err(text)?;
    let entities = Entities::from_entities([entity], None).map_err(text)?;
    let context = Context::from_pairs(seen(act)?).map_err(text)?;
    let (action, resource) = (uid("Action", action)?, uid(kind, resource)?);
    // Not checked against the schema: a payload may have fields that no policy knows of.
    let request = Request::new(principal, action, resource, context, None).map_err(text)?;
    Ok((request, entities))
}

fn text(error: impl std::fmt::Display) -> Why {
    error.to_string()
}

fn uid(kind: &str, id: &str) -> Result<EntityUid, Why> {
    let kind = EntityTypeName::from_str(kind).map_err(text)?;
    Ok(EntityUid::from_type_name_and_id(kind, EntityId::new(id)))
}

fn strings(texts: &[String]) -> Value {
    Value::new_set(texts.iter().cloned().map(Value::new_string))
}

fn seen(act: &Act) -> Result<Vec<(String, Value)>, Why> {
    let (mutates, declared, in_scope) = match &act.doing {
        Doing::Admit => (false, true, act.out_of_scope.is_empty()),
        Doing::Effect { declared, .. } => (true, *declared, act.out_of_scope.is_empty()),
        Doing::Call { in_scope, mutates, .. } => (*mutates, true, *in_scope),
    };
    let mut seen = vec![
        ("granted", Value::new_bool(act.lacks().is_none())),
        ("needs", strings(&act.needs)),
        ("command_type", Value::new_string(act.command_type.clone())),
        ("ingress", Value::new_string(act.ingress.clone())),
        ("agent", Value::new_bool(act.agent)),
        ("mutates", Value::new_bool(mutates)),
        ("declared", Value::new_bool(declared)),
        ("in_scope", Value::new_bool(in_scope)),
        ("payload", payload(&act.payload)?),
    ];
    match &act.doing {
        Doing::Call { connector, .. } => {
            seen.push(("connector", Value::new_string(connector.clone())));
        }
        Doing::Effect { key, via, .. } => {
            seen.push(("key", Value::new_string(key.clone())));
            if let Some((connector, operation)) = via {
                seen.push(("connector", Value::new_string(connector.clone())));
                seen.push(("operation", Value::new_string(operation.clone())));
            }
        }
        Doing::Admit => {}
    }
    if let Some(named) = &act.classes {
        seen.push(("classes", classes(named)?));
    }
    Ok(seen.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

fn classes(classes: &Classes) -> Result<Value, Why> {
    let fields = [
        ("approval", format!("{:?}", classes.approval)),
        ("reversibility", format!("{:?}", classes.reversibility)),
        ("sensitivity", format!("{:?}", classes.sensitivity)),
    ];
    let fields = fields.map(|(name, value)| (name.to_owned(), Value::new_string(value)));
    Value::new_record(fields).map_err(text)
}

fn payload(payload: &Json) -> Result<Value, Why> {
    let none = serde_json::Map::new();
    let fields = payload.as_object().unwrap_or(&none);
    if fields.len() > FIELDS_MAX {
        return Err(format!("the payload has {} fields", fields.len()));
    }
    let present = fields.iter().filter(|(_, value)| !value.is_null());
    Value::new_record(present.map(|(name, value)| (name.clone(), scalar(value)))).map_err(text)
}

fn scalar(value: &Json) -> Value {
    match value {
        Json::Bool(b) => Value::new_bool(*b),
        Json::String(text) => Value::new_string(text.clone()),
        Json::Number(number) => match number.as_i64() {
            Some(n) => Value::new_long(n),
            None => fraction(&number.to_string()),
        },
        Json::Null | Json::Array(_) | Json::Object(_) => Value::new_set([]),
    }
}

/// Cedar's decimals have at most four digits behind the point; what does not fit is a text.
fn fraction(number: &str) -> Value {
    let fits = number.split_once('.').is_some_and(|(whole, part)| {
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let whole = whole.strip_prefix('-').unwrap_or(whole);
        digits(whole) && whole.len() <= 14 && digits(part) && part.len() <= 4
    });
    if fits { Value::new_decimal(number) } else { Value::new_string(number.to_owned()) }
}
