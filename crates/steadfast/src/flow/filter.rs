//! Filters of event triggers: expressions in CEL over `event`, compiled once.
//!
//! Invariants: a filter is bounded in length, depth and size before it is kept, and in steps when
//! it is evaluated, so that neither writing nor evaluating one can hold a process up; every
//! function it calls exists; evaluating one has no effects. A filter that fails on an event (it
//! reads a field that is not there, it adds a number to a text) does not match it, and says why.

mod check;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use cel::common::ast::{CallExpr, EntryExpr, Expr};
use cel::objects::Key;
use cel::parser::{Expression, PrattParser};
use cel::{Context, Env, ExecutionError};
use serde_json::Value;
use steadfast_core::caught::{self, Code};
use steadfast_core::{Error, Result, limits};

/// Wrapped around every list that a macro walks through; no text can name it.
const WALK: &str = "@walk";

/// The standard functions, declared once: an evaluation adds only what it counts with.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// A compiled filter.
#[derive(Debug)]
pub(crate) struct Filter {
    expression: Expression,
}

/// Why a filter gives no answer for an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// One of a few words: what reports are counted by.
    pub(crate) kind: &'static str,
    pub(crate) message: String,
}

impl Filter {
    pub(crate) fn compile(text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::invalid("SF-0703", format!("filter \"{text}\": {why}"));
        if text.len() > limits::TEMPLATE_BYTES {
            return Err(wrong(&format!("is longer than {} bytes", limits::TEMPLATE_BYTES)));
        }
        // Not `Program::compile`: its parser takes gigabytes for some short texts.
        let parser = PrattParser::new()
            .max_recursion_depth(64)
            .max_expression_node_count(2_000)
            .enable_optional_syntax(true);
        let mut expression = parser.parse(text).map_err(|e| wrong(e.to_string().trim()))?;
        check::names(&expression).map_err(|why| wrong(&why))?;
        count_walks(&mut expression);
        Ok(Self { expression })
    }

    /// Whether the filter is true of an event.
    pub(crate) fn matches(&self, event: &Value) -> Result<bool, Failure> {
        let left = Arc::new(AtomicUsize::new(limits::FILTER_STEPS));
        let mut context = Context::with_env(ENV.clone());
        context.add_variable_from_value("event", cel_value(event));
        let walked = left.clone();
        let walk = move |range: cel::Value| walk(&walked, range);
        context.add_function(WALK, walk).expect("invariant: no text declares this name");
        let resolve = || context.resolve(&self.expression);
        let answer = caught::call(Code("filter", ""), resolve)
            .map_err(|panic| Failure { kind: "panic", message: panic.message().to_owned() })?;
        // First: `||` and `&&` swallow errors, so it may look like a whole evaluation's answer.
        if left.load(Ordering::Relaxed) == 0 {
            let message = format!(
                "takes more than {} steps through lists for one event",
                limits::FILTER_STEPS
            );
            return Err(Failure { kind: "too_many_steps", message });
        }
        match answer {
            Ok(cel::Value::Bool(matches)) => Ok(matches),
            Ok(other) => {
                let message = format!("gives {}, not true or false", other.type_of());
                Err(Failure { kind: "not_a_bool", message })
            }
            Err(error) => Err(Failure { kind: kind(&error), message: error.to_string() }),
        }
    }
}

/// Takes the elements of a list out of the budget before a macro walks through them.
fn walk(left: &AtomicUsize, range: cel::Value) -> Result<cel::Value, ExecutionError> {
    let elements = match &range {
        cel::Value::List(list) => list.len(),
        cel::Value::Map(map) => map.map.len(),
        _ => 1,
    };
    let before = left.load(Ordering::Relaxed);
    let rest = before.saturating_sub(elements + 1);
    left.store(rest, Ordering::Relaxed);
    match rest {
        0 => Err(ExecutionError::function_error(WALK, "too many steps")),
        _ => Ok(range),
    }
}

/// The word under which failures are counted.
fn kind(error: &ExecutionError) -> &'static str {
    match error {
        ExecutionError::NoSuchKey(_) | ExecutionError::IndexOutOfBounds(_) => "not_there",
        ExecutionError::Overflow(..) => "overflow",
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => {
            "division_by_zero"
        }
        ExecutionError::FunctionError { .. } => "function",
        _ => "types",
    }
}

/// An event as CEL sees it. Whole numbers are `int`, like literals, wherever they fit: with
/// serde's own `uint` for what is not negative, `event.payload.n + 1` would have no meaning.
fn cel_value(value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(bool) => cel::Value::Bool(*bool),
        Value::Number(number) => match number.as_i64() {
            Some(int) => cel::Value::Int(int),
            None => cel::Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => cel::Value::String(Arc::new(text.clone())),
        Value::Array(items) => cel::Value::List(Arc::new(items.iter().map(cel_value).collect())),
        Value::Object(members) => {
            let members = members.iter().map(|(k, v)| (Key::from(k.as_str()), cel_value(v)));
            cel::Value::Map(members.collect::<std::collections::HashMap<_, _>>().into())
        }
    }
}

/// Has every list that a macro walks through counted first.
fn count_walks(expression: &mut Expression) {
    for_each_part(&mut expression.expr, &mut count_walks);
    if let Expr::Comprehension(of) = &mut expression.expr {
        let range = std::mem::take(&mut of.iter_range);
        let call = CallExpr { func_name: WALK.to_owned(), target: None, args: vec![range] };
        of.iter_range = Expression { id: 0, expr: Expr::Call(call) };
    }
}

fn for_each_part(expr: &mut Expr, each: &mut impl FnMut(&mut Expression)) {
    let entry = |entry: &mut EntryExpr, each: &mut dyn FnMut(&mut Expression)| match entry {
        EntryExpr::StructField(field) => each(&mut field.value),
        EntryExpr::MapEntry(entry) => {
            each(&mut entry.key);
            each(&mut entry.value);
        }
    };
    match expr {
        Expr::Comprehension(of) => {
            each(&mut of.iter_range);
            each(&mut of.accu_init);
            each(&mut of.loop_cond);
            each(&mut of.loop_step);
            each(&mut of.result);
        }
        Expr::Call(call) => {
            call.target.iter_mut().for_each(|target| each(target));
            call.args.iter_mut().for_each(each);
        }
        Expr::List(list) => list.elements.iter_mut().for_each(each),
        Expr::Select(select) => each(&mut select.operand),
        Expr::Map(map) => map.entries.iter_mut().for_each(|e| entry(&mut e.expr, each)),
        Expr::Struct(of) => of.entries.iter_mut().for_each(|e| entry(&mut e.expr, each)),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ask(filter: &str, event: &Value) -> Result<bool, Failure> {
        Filter::compile(filter).unwrap().matches(event)
    }

    fn matches(filter: &str, event: &Value) -> bool {
        ask(filter, event).unwrap()
    }

    fn fails(filter: &str, event: &Value) -> &'static str {
        ask(filter, event).unwrap_err().kind
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
        assert!(matches("has(event.payload.total) && !has(event.payload.missing)", &event));
    }

    #[test]
    fn whole_numbers_are_ints_as_literals_are() {
        let event = json!({"n": 120, "z": 0, "neg": -3, "half": 120.5, "large": u64::MAX});
        for yes in [
            "event.n + 1 > 100",
            "event.n % 2 == 0",
            "-event.n < 0",
            "event.n - 121 == event.z - 1",
            "event.neg * -1 == 3",
            "event.half > 120",
            "event.half + 1.0 < 122.0",
            "double(event.n) / 7.0 > 17.0",
            "event.large > 9223372036854775807",
            "event.n in [119, 120]",
            "[1, 2, 3].exists(x, x * 40 == event.n)",
            "int(event.half) == event.n",
        ] {
            assert_eq!(ask(yes, &event), Ok(true), "{yes}");
        }
    }

    #[test]
    fn a_filter_that_fails_says_why() {
        let event = json!({"n": 7, "text": "x", "list": [1]});
        assert_eq!(fails("event.payload.missing > 1", &event), "not_there");
        assert_eq!(fails("event.list[3] == 1", &event), "not_there");
        assert_eq!(fails("event.text + 1 == 2", &event), "types");
        assert_eq!(fails("event.n / 0 == 1", &event), "division_by_zero");
        assert_eq!(fails("event.n * 9223372036854775807 > 0", &event), "overflow");
        assert_eq!(fails("event.n", &event), "not_a_bool");
        assert_eq!(fails("int(event.text) == 1", &event), "function");
    }

    #[test]
    fn what_cannot_be_a_filter_is_refused() {
        for bad in ["event.", "a.b == 1", "1 +", "", &"(".repeat(3_000), &"x".repeat(5_000)] {
            let shown: String = bad.chars().take(20).collect();
            let refused = Filter::compile(bad).err();
            assert_eq!(refused.map(|e| e.code().to_owned()), Some("SF-0703".into()), "{shown}");
        }
    }

    #[test]
    fn steps_through_lists_are_bounded() {
        let list: Vec<u32> = (0..200).collect();
        let event = json!({ "l": list });
        let once = "event.l.all(a, a >= 0)";
        let twice = "event.l.all(a, event.l.all(b, a + b >= 0))";
        assert!(matches(once, &event) && matches(twice, &event));
        let four =
            "event.l.all(a, event.l.all(b, event.l.all(c, event.l.all(d, a + b + c + d >= 0))))";
        assert_eq!(fails(four, &event), "too_many_steps");
        assert_eq!(fails(&format!("{four} || true"), &event), "too_many_steps", "nor swallowed");
        let maps = "event.l.map(a, event.l.map(b, event.l.map(c, event.l.filter(d, d == a))))";
        assert_eq!(fails(&format!("size({maps}) > 0"), &event), "too_many_steps");
    }
}
