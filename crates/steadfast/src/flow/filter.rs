//! Filters of event triggers: expressions in CEL over `event`, compiled once.
//!
//! Invariants: a filter is bounded in length, depth and size before it is kept, so that writing one
//! cannot bring a process down; evaluating one has no effects; a filter that fails on an event (a
//! field it asks for is not there) does not match it.

use cel::common::ast::{EntryExpr, Expr};
use cel::parser::{Expression, PrattParser};
use serde_json::Value;
use steadfast_core::caught::{self, Code};
use steadfast_core::{Error, Result, limits};

/// A compiled filter.
pub(crate) struct Filter {
    expression: Expression,
}

impl Filter {
    pub(crate) fn compile(text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::invalid("SF-0703", format!("filter \"{text}\": {why}"));
        if text.len() > limits::TEMPLATE_BYTES {
            return Err(wrong(&format!("is longer than {} bytes", limits::TEMPLATE_BYTES)));
        }
        // Not `Program::compile`: its parser takes gigabytes for some short texts.
        let parser = PrattParser::new().max_recursion_depth(64).max_expression_node_count(2_000);
        let expression = parser.parse(text).map_err(|e| wrong(e.to_string().trim()))?;
        let mut known = vec!["event"];
        bound(&expression, &mut known);
        let foreign = |name: &&str| !known.contains(name);
        if let Some(name) = expression.references().variables().into_iter().find(foreign) {
            return Err(wrong(&format!("names `{name}`; there is only `event`")));
        }
        Ok(Self { expression })
    }

    /// Whether the filter is true of an event.
    pub(crate) fn matches(&self, event: &Value) -> bool {
        let mut context = cel::Context::default();
        if context.add_variable("event", event).is_err() {
            return false;
        }
        let resolve = || context.resolve(&self.expression);
        let resolved = match caught::call(Code("filter", ""), resolve) {
            Ok(resolved) => resolved,
            Err(error) => {
                tracing::warn!(%error, "a filter does not match an event");
                return false;
            }
        };
        match resolved {
            Ok(cel::Value::Bool(matches)) => matches,
            Ok(_) => false,
            Err(error) => {
                tracing::debug!(%error, "a filter does not apply to an event");
                false
            }
        }
    }
}

/// The names that macros bind: the `t` of `tags.exists(t, t == 'eu')`.
fn bound<'a>(expression: &'a Expression, names: &mut Vec<&'a str>) {
    match &expression.expr {
        Expr::Comprehension(of) => {
            names.push(&of.iter_var);
            names.extend(of.iter_var2.as_deref());
            for part in [&of.iter_range, &of.accu_init, &of.loop_cond, &of.loop_step, &of.result] {
                bound(part, names);
            }
        }
        Expr::Call(call) => {
            call.target.iter().for_each(|target| bound(target, names));
            call.args.iter().for_each(|arg| bound(arg, names));
        }
        Expr::List(list) => list.elements.iter().for_each(|element| bound(element, names)),
        Expr::Select(select) => bound(&select.operand, names),
        Expr::Map(map) => map.entries.iter().for_each(|entry| bound_in(&entry.expr, names)),
        Expr::Struct(of) => of.entries.iter().for_each(|entry| bound_in(&entry.expr, names)),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => {}
    }
}

fn bound_in<'a>(entry: &'a EntryExpr, names: &mut Vec<&'a str>) {
    match entry {
        EntryExpr::StructField(field) => bound(&field.value, names),
        EntryExpr::MapEntry(entry) => {
            bound(&entry.key, names);
            bound(&entry.value, names);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn matches(filter: &str, event: &Value) -> bool {
        Filter::compile(filter).unwrap().matches(event)
    }

    #[test]
    fn filters_ask_what_an_event_holds() {
        let event = json!({"type": "order.paid", "payload": {"total": 120, "tags": ["eu"]}});
        assert!(matches("event.payload.total > 100", &event));
        assert!(!matches("event.payload.total > 200", &event));
        assert!(matches("event.type == 'order.paid' && 'eu' in event.payload.tags", &event));
        assert!(matches("event.type.startsWith('order.')", &event));
        assert!(matches("event.payload.tags.exists(t, t == 'eu')", &event), "macros bind names");
        assert!(!matches("event.payload.tags.all(t, t.startsWith('us'))", &event));
        assert!(!matches("event.payload.missing > 1", &event), "what is not there matches nothing");
        assert!(!matches("event.payload.total", &event), "only true is true");
    }

    #[test]
    fn what_cannot_be_a_filter_is_refused() {
        for bad in ["event.", "a.b == 1", "1 +", "", &"(".repeat(3_000), &"x".repeat(5_000)] {
            let shown: String = bad.chars().take(20).collect();
            let refused = Filter::compile(bad).err();
            assert_eq!(refused.map(|e| e.code().to_owned()), Some("SF-0703".into()), "{shown}");
        }
    }
}
