//! The workflows of the worker program, as the checks know them: which steps call the ledger.

/// A workflow and the steps it records, in the order of its code.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) workflow: &'static str,
    pub(crate) steps: &'static [&'static str],
}

const fn shape(workflow: &'static str, steps: &'static [&'static str]) -> Shape {
    Shape { workflow, steps }
}

/// What a storm submits, in turn.
pub(crate) static SHAPES: [Shape; 10] = [
    shape("linear", &["one", "two", "three", "four", "five"]),
    shape("parallel", &["left", "middle", "right"]),
    shape("retry", &["before", "flaky"]),
    shape("sleeper", &["first", "second", "third"]),
    shape("family", &["birth"]),
    shape("signaller", &["before", "after"]),
    shape("once", &["before", "once"]),
    shape("keyed", &["before", "keyed"]),
    shape("queued", &["one", "two"]),
    shape("clocked", &["early", "late"]),
];

/// A queue without limits: claims from it are the cheapest there are.
pub(crate) const PLAIN: &str = "plain";

/// Carries out the last input that a debounced call gave it.
pub(crate) static LATEST: Shape = shape("latest", &["seen"]);

/// A child of the family.
pub(crate) static MEMBER: Shape = shape("member", &["one", "two"]);
