//! What a filter names: the event, the names that its macros bind, and functions that exist.

use cel::common::ast::{CallExpr, EntryExpr, Expr};
use cel::parser::Expression;

/// A function, the arguments it takes when it is called alone, and those it takes after a dot.
struct Function {
    name: &'static str,
    alone: Option<usize>,
    dotted: Option<usize>,
}

const fn function(name: &'static str, alone: Option<usize>, dotted: Option<usize>) -> Function {
    Function { name, alone, dotted }
}

/// Every function that a filter may call. Macros (`has`, `all`, `exists`, `exists_one`, `map`,
/// `filter`) are no calls any more when this is looked at.
const FUNCTIONS: [Function; 17] = [
    function("bool", Some(1), None),
    function("bytes", Some(1), None),
    function("contains", None, Some(1)),
    function("double", Some(1), None),
    function("dyn", Some(1), None),
    function("endsWith", None, Some(1)),
    function("hasValue", None, Some(0)),
    function("int", Some(1), None),
    function("matches", Some(2), Some(1)),
    function("or", None, Some(1)),
    function("orValue", None, Some(1)),
    function("size", Some(1), Some(0)),
    function("startsWith", None, Some(1)),
    function("string", Some(1), None),
    function("type", Some(1), None),
    function("uint", Some(1), None),
    function("value", None, Some(0)),
];

const MACROS: [&str; 6] = ["all", "exists", "exists_one", "filter", "has", "map"];

/// Checks every name; gives what is wrong with one.
pub(super) fn names(expression: &Expression) -> Result<(), String> {
    let mut known = vec!["event"];
    part(expression, &mut known)?;
    let foreign = |name: &&str| !known.contains(name) && !name.starts_with('@');
    match expression.references().variables().into_iter().find(foreign) {
        Some(name) => Err(format!("names `{name}`; there is only `event`")),
        None => Ok(()),
    }
}

/// Checks the calls of a part, and collects the names that its macros bind: the `t` of
/// `tags.exists(t, t == 'eu')`.
fn part<'a>(expression: &'a Expression, bound: &mut Vec<&'a str>) -> Result<(), String> {
    match &expression.expr {
        Expr::Comprehension(of) => {
            bound.push(&of.iter_var);
            bound.extend(of.iter_var2.as_deref());
            let parts = [&of.iter_range, &of.accu_init, &of.loop_cond, &of.loop_step, &of.result];
            parts.into_iter().try_for_each(|each| part(each, bound))
        }
        Expr::Call(call) => {
            known(call)?;
            let parts = call.target.iter().map(|target| &**target).chain(&call.args);
            parts.into_iter().try_for_each(|each| part(each, bound))
        }
        Expr::List(list) => list.elements.iter().try_for_each(|each| part(each, bound)),
        Expr::Select(select) => part(&select.operand, bound),
        Expr::Map(map) => map.entries.iter().try_for_each(|each| entry(&each.expr, bound)),
        Expr::Struct(of) => Err(format!("makes a `{}`, a type that does not exist", of.type_name)),
        Expr::Unspecified => Err("has an empty part".to_owned()),
        Expr::Ident(_) | Expr::Literal(_) => Ok(()),
    }
}

fn entry<'a>(entry: &'a EntryExpr, bound: &mut Vec<&'a str>) -> Result<(), String> {
    match entry {
        EntryExpr::StructField(field) => part(&field.value, bound),
        EntryExpr::MapEntry(entry) => {
            part(&entry.key, bound)?;
            part(&entry.value, bound)
        }
    }
}

fn known(call: &CallExpr) -> Result<(), String> {
    let name = call.func_name.as_str();
    // Operators: `_+_`, `!_`, `@in`. No function's name has such a character.
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') || name.starts_with('_') {
        return Ok(());
    }
    let Some(function) = FUNCTIONS.iter().find(|function| function.name == name) else {
        return Err(unknown(name));
    };
    let (takes, other) = match call.target {
        None => (function.alone, function.dotted),
        Some(_) => (function.dotted, function.alone),
    };
    let form = |dotted: bool, args: usize| {
        let args = ["a", "b"][..args].join(", ");
        if dotted { format!("`x.{name}({args})`") } else { format!("`{name}({args})`") }
    };
    let is_dotted = call.target.is_some();
    match (takes, other) {
        (Some(args), _) if args == call.args.len() => Ok(()),
        (Some(args), _) => Err(format!(
            "calls `{name}` with {} arguments; it is called as {}",
            call.args.len(),
            form(is_dotted, args)
        )),
        (None, args) => {
            let form = form(!is_dotted, args.unwrap_or_default());
            Err(format!("calls `{name}` wrongly; it is called as {form}"))
        }
    }
}

fn unknown(name: &str) -> String {
    if MACROS.contains(&name) {
        return format!("calls the macro `{name}` with the wrong number of arguments");
    }
    let all = FUNCTIONS.iter().map(|function| function.name).chain(MACROS);
    let close = all
        .map(|known| (strsim::damerau_levenshtein(known, name), known))
        .filter(|(distance, _)| *distance <= 2)
        .min();
    let hint = close.map(|(_, known)| format!("; did you mean `{known}`?")).unwrap_or_default();
    format!("calls `{name}`, a function that does not exist{hint}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Filter;
    use super::*;

    fn refusal(filter: &str) -> String {
        Filter::compile(filter).unwrap_err().to_string()
    }

    #[test]
    fn a_function_that_does_not_exist_is_refused_by_name() {
        for (filter, says) in [
            ("event.type.startWith('a')", "did you mean `startsWith`?"),
            ("nonsense()", "`nonsense`, a function that does not exist"),
            ("timestamp('2026-01-01T00:00:00Z') > event.at", "`timestamp`"),
            ("max(1, 2) == 2", "`max`"),
            ("[1].exists(x, nonsense(x))", "`nonsense`"),
            ("event.tags.exists('eu')", "`exists`"),
            ("startsWith(event.type, 'a')", "it is called as `x.startsWith(a)`"),
            ("event.type.startsWith('a', 'b')", "with 2 arguments"),
            ("size(event.a, event.b) == 1", "with 2 arguments"),
            ("Order{id: 1}.id == 1", "`Order`"),
        ] {
            assert!(refusal(filter).contains(says), "{filter}: {}", refusal(filter));
        }
    }

    /// The table says what the evaluator has: each form of each function gives an answer.
    #[test]
    fn every_function_of_the_table_exists() {
        let event = json!({ "text": "12", "list": [1] });
        let mut shown = Vec::new();
        for (filter, names) in [
            ("bool('true') && bytes('a') == b'a' && double('1') == 1.0", "bool bytes double"),
            ("dyn(event.text) == '12' && int(event.text) == 12", "dyn int"),
            ("event.text.contains('1') && event.text.endsWith('2')", "contains endsWith"),
            ("event.text.startsWith('1') && matches(event.text, '^1')", "startsWith matches"),
            ("event.text.matches('2$') && size(event.list) == 1", "matches size"),
            ("event.list.size() == 1 && string(12) == event.text", "size string"),
            ("type(1) == type(2) && uint(1) == 1u", "type uint"),
            ("event.?nothing.orValue(3) == 3 && event.?text.hasValue()", "orValue hasValue"),
            ("event.?nothing.or(event.?text).value() == '12'", "or value"),
        ] {
            assert_eq!(Filter::compile(filter).unwrap().matches(&event), Ok(true), "{filter}");
            shown.extend(names.split(' '));
        }
        for function in FUNCTIONS {
            assert!(shown.contains(&function.name), "{} is shown by nothing", function.name);
        }
    }
}
