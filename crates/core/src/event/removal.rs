//! What retention says that it has removed: an event of the chain itself, so that nothing is gone
//! of which the chain does not tell.
//!
//! Invariants: it names every number it removed, and where the chain begins since; a place of the
//! chain whose row is gone without that is a broken one.
//! Deliberately absent: proof that it was retention that wrote it. Whoever can write rows can write
//! such a row, too; but then everybody who is sent events is told of it.

use serde_json::{Value, json};

use super::{Anchor, Facts};

/// What retention has removed at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// The numbers, from each first to its last.
    pub numbers: Vec<(i64, i64)>,
    /// Where the chain begins since.
    pub base: Anchor,
}

impl Removal {
    /// The type of the event that tells of it.
    pub const TYPE: &'static str = "retention.removed";

    /// The removal of these numbers.
    pub fn new(mut numbers: Vec<i64>, base: Anchor) -> Self {
        numbers.sort_unstable();
        let mut spans: Vec<(i64, i64)> = Vec::new();
        for number in numbers {
            match spans.last_mut() {
                Some((_, last)) if *last + 1 >= number => *last = number,
                _ => spans.push((number, number)),
            }
        }
        Self { numbers: spans, base }
    }

    /// What an event tells of, if it is one.
    pub fn of(facts: &Facts<'_>) -> Option<Self> {
        (facts.event_type == Self::TYPE).then(|| Self::parse(facts.payload)).flatten()
    }

    /// Reads the payload of such an event.
    pub fn parse(payload: &str) -> Option<Self> {
        let told: Value = serde_json::from_str(payload).ok()?;
        let span = |span: &Value| Some((span[0].as_i64()?, span[1].as_i64()?));
        let numbers = told["numbers"].as_array()?.iter().map(span).collect::<Option<_>>()?;
        let base = &told["begins_behind"];
        let base = Anchor { seq: base["seq"].as_i64()?, hash: base["hash"].as_str()?.to_owned() };
        Some(Self { numbers, base })
    }

    /// The first and the last number.
    pub fn ends(&self) -> (i64, i64) {
        let first = self.numbers.first().map_or(0, |span| span.0);
        (first, self.numbers.last().map_or(0, |span| span.1))
    }

    /// Whether nobody needs it any more to know that nothing else is gone: all that it tells of is
    /// before the beginning, which another one has told of.
    pub fn is_past(&self, base: &Anchor) -> bool {
        self.ends().1 <= base.seq && self.base.seq < base.seq
    }

    /// As the payload of its event, with what else is to be known. Sinks that are disabled are
    /// not waited for: it names those that have missed something.
    pub fn to_json(&self, purpose: &str, before: &str, missed: &[(&str, i64)]) -> Value {
        let removed: i64 = self.numbers.iter().map(|(first, last)| last - first + 1).sum();
        let (first, last) = self.ends();
        let missed: Vec<Value> = missed
            .iter()
            .filter(|(_, cursor)| *cursor < last)
            .map(|(sink, cursor)| json!({ "sink": sink, "sent_up_to": cursor }))
            .collect();
        json!({
            "purpose": purpose, "before": before, "removed": removed, "first": first, "last": last,
            "numbers": self.numbers,
            "begins_behind": { "seq": self.base.seq, "hash": self.base.hash },
            "missed_by": missed,
        })
    }
}

/// Numbers that are gone, and those that somebody has told of.
#[derive(Debug, Clone, Default)]
pub(super) struct Gone {
    /// Places without their rows, as spans.
    found: Vec<(i64, i64)>,
    told: Vec<(i64, i64)>,
    bases: Vec<Anchor>,
}

impl Gone {
    /// A place whose row is gone, in the order of the chain.
    pub(super) fn found(&mut self, seq: i64) {
        match self.found.last_mut() {
            Some((_, last)) if *last + 1 == seq => *last = seq,
            _ => self.found.push((seq, seq)),
        }
    }

    pub(super) fn told(&mut self, removal: &Removal) {
        self.told.extend(&removal.numbers);
        self.bases.push(removal.base.clone());
    }

    /// The first number that is gone without anybody having told of it.
    pub(super) fn untold(&self, base: &Anchor) -> Option<i64> {
        if base.seq > 0 && !self.bases.contains(base) {
            return Some(base.seq);
        }
        let mut told = self.told.clone();
        told.sort_unstable();
        let mut told = told.into_iter().peekable();
        let mut covered = base.seq;
        for (first, last) in &self.found {
            covered = covered.max(first - 1);
            while covered < *last {
                match told.peek() {
                    Some((from, upto)) if *from <= covered + 1 => {
                        covered = covered.max(*upto);
                        told.next();
                    }
                    _ => return Some(covered + 1),
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(seq: i64) -> Anchor {
        Anchor { seq, hash: format!("{seq:064}") }
    }

    #[test]
    fn what_was_removed_is_told_and_read_back() {
        let removal = Removal::new(vec![9, 2, 3, 1, 7], base(3));
        assert_eq!(removal.numbers, [(1, 3), (7, 7), (9, 9)]);
        let told = removal.to_json("event", "2026", &[("hook", 4), ("late", 9), ("on time", 12)]);
        assert_eq!(
            (&told["removed"], &told["first"], &told["last"]),
            (&json!(5), &1.into(), &9.into())
        );
        assert_eq!(told["missed_by"], json!([{ "sink": "hook", "sent_up_to": 4 }]));
        assert_eq!(Removal::parse(&told.to_string()), Some(removal.clone()));
        assert_eq!(Removal::parse("{\"numbers\":[[1,\"x\"]]}"), None);
        assert!(
            !removal.is_past(&base(8)) && !removal.is_past(&base(3)) && removal.is_past(&base(9))
        );
    }

    /// R30
    #[test]
    fn r030_what_nobody_told_of_is_found() {
        let gone = |found: &[i64], told: &[&[i64]], from: i64| {
            let mut gone = Gone::default();
            found.iter().for_each(|seq| gone.found(*seq));
            told.iter().for_each(|told| gone.told(&Removal::new(told.to_vec(), base(from))));
            gone.untold(&base(from))
        };
        assert_eq!(gone(&[2, 3, 7], &[&[2, 7], &[3]], 0), None);
        assert_eq!(gone(&[2, 3, 7], &[&[1, 2, 3, 4], &[7, 9]], 0), None, "more may be told of");
        assert_eq!(gone(&[2, 3, 7], &[&[2, 7]], 0), Some(3));
        assert_eq!(gone(&[2, 3, 7], &[&[3, 7]], 0), Some(2));
        assert_eq!(gone(&[2, 3, 7], &[&[2, 3], &[8]], 0), Some(7));
        assert_eq!(gone(&[], &[], 0), None);
        assert_eq!(gone(&[], &[], 5), Some(5), "a beginning that nobody told of");
        assert_eq!(gone(&[7], &[&[5, 7]], 5), None);
    }
}
