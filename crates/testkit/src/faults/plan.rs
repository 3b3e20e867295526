//! What goes wrong, and where: faults, plans of them, and random sources of them.
//!
//! Invariants: a plan and its seed fix a whole run; a plan's text form parses back to the same
//! plan.
//! Deliberately absent: faults inside the store. A fault is what a caller of the store can meet.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{Access, Point};
use crate::sim::Rng;

/// Longer than any lease, so that the node comes back as a zombie.
const PAUSE: Duration = Duration::from_secs(90);
/// Later than the retry of the same operation, and than most of what follows it.
const LATE: Duration = Duration::from_secs(45);
/// Long enough for heartbeats to fail, and for leases to run out.
const DOWN: Duration = Duration::from_secs(40);
/// Beyond a short lease, but within the skew that a worker tolerates: further away it rightly
/// claims nothing any more, and a scenario with one node would never end.
const JUMP_MS: i64 = 20_000;

/// One thing that goes wrong at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is applied; the caller sees a transient error.
    FailBefore,
    /// Applied, but the caller sees an unknown outcome.
    Ambiguous,
    /// The node crashes before anything is applied.
    CrashBefore,
    /// Applied, and the node crashes before it sees the reply.
    CrashAfter,
    /// Applied, and the node stands still before it sees the reply.
    Pause(Duration),
    /// The node stands still between making the request and sending it: what it asks for is as old
    /// as that when it is applied, and the node goes on with what it had in memory.
    Stop(Duration),
    /// The caller sees an unknown outcome, and the operation is applied only after this time.
    Late(Duration),
    /// Applied twice in a row; the second reply is returned.
    Duplicate,
    /// From here on no change hint arrives anywhere.
    LostNotification,
    /// From here on every call of every node fails for this long.
    StoreDown(Duration),
    /// The node's clock moves by so many milliseconds before the call.
    ClockJump(i64),
    /// The server of the store crashes and restarts without the claims that it had not flushed.
    /// Nothing of this call is applied, and every node loses its connections.
    Forget,
}

impl Fault {
    /// Every kind, with its usual measure.
    pub const ALL: [Fault; 13] = [
        Fault::FailBefore,
        Fault::Ambiguous,
        Fault::CrashBefore,
        Fault::CrashAfter,
        Fault::Pause(PAUSE),
        Fault::Stop(PAUSE),
        Fault::Late(LATE),
        Fault::Duplicate,
        Fault::LostNotification,
        Fault::StoreDown(DOWN),
        Fault::ClockJump(JUMP_MS),
        Fault::ClockJump(-JUMP_MS),
        Fault::Forget,
    ];

    /// The kind's name, as in a plan's text.
    pub fn name(self) -> &'static str {
        match self {
            Fault::FailBefore => "fail_before",
            Fault::Ambiguous => "ambiguous",
            Fault::CrashBefore => "crash_before",
            Fault::CrashAfter => "crash_after",
            Fault::Pause(_) => "pause",
            Fault::Stop(_) => "stop",
            Fault::Late(_) => "late",
            Fault::Duplicate => "duplicate",
            Fault::LostNotification => "lost_notification",
            Fault::StoreDown(_) => "store_down",
            Fault::ClockJump(_) => "clock_jump",
            Fault::Forget => "forget",
        }
    }

    /// Whether the node stands still for a while and goes on, perhaps after its leases.
    pub fn stops_a_node(self) -> bool {
        matches!(self, Fault::Pause(_) | Fault::Stop(_))
    }

    /// Whether the fault makes a difference at such a point. A read that is applied late, twice or
    /// without an answer is a read that failed; at a crash point the node can only crash; a store
    /// that has nothing to forget merely fails once.
    pub fn fits(self, point: &Point) -> bool {
        let access = point.access;
        match self {
            Fault::CrashBefore => true,
            Fault::Forget => access != Access::CrashPoint && point.forgets,
            Fault::FailBefore
            | Fault::Pause(_)
            | Fault::LostNotification
            | Fault::StoreDown(_)
            | Fault::ClockJump(_) => access != Access::CrashPoint,
            Fault::Ambiguous
            | Fault::CrashAfter
            | Fault::Stop(_)
            | Fault::Late(_)
            | Fault::Duplicate => access == Access::Write,
        }
    }

    /// The measure in milliseconds, where the kind has one.
    fn measure(self) -> Option<i64> {
        match self {
            Fault::Pause(d) | Fault::Stop(d) | Fault::Late(d) | Fault::StoreDown(d) => {
                Some(i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
            }
            Fault::ClockJump(ms) => Some(ms),
            _ => None,
        }
    }

    fn with_measure(self, ms: i64) -> Option<Self> {
        let d = u64::try_from(ms).map(Duration::from_millis);
        match self {
            Fault::Pause(_) => d.ok().map(Fault::Pause),
            Fault::Stop(_) => d.ok().map(Fault::Stop),
            Fault::Late(_) => d.ok().map(Fault::Late),
            Fault::StoreDown(_) => d.ok().map(Fault::StoreDown),
            Fault::ClockJump(_) => Some(Fault::ClockJump(ms)),
            _ => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        // The first of its name in the list is what the bare name stands for.
        let usual = Fault::ALL.iter().find(|usual| usual.name() == self.name());
        match self.measure() {
            Some(ms) if usual != Some(self) => write!(f, "={ms}ms"),
            _ => Ok(()),
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, measure) = match text.split_once('=') {
            Some((name, measure)) => (name, Some(measure)),
            None => (text, None),
        };
        let usual = Fault::ALL.into_iter().find(|fault| fault.name() == name);
        let usual = usual.ok_or_else(|| format!("no fault is called \"{name}\""))?;
        let Some(measure) = measure else {
            return Ok(usual);
        };
        measure
            .strip_suffix("ms")
            .and_then(|digits| digits.parse().ok())
            .and_then(|ms| usual.with_measure(ms))
            .ok_or_else(|| format!("\"{measure}\" is no measure of {name}"))
    }
}

/// How likely each fault is, in calls out of ten thousand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rates(Vec<(Fault, u32)>);

impl Rates {
    /// The same for every kind.
    pub fn uniform(per_ten_thousand: u32) -> Self {
        Self(Fault::ALL.map(|fault| (fault, per_ten_thousand)).to_vec())
    }

    /// Each kind on or off, and more or less of it, as the seed has it. Worlds in which only one
    /// kind happens find what a uniform mixture hides.
    pub fn swarm(seed: u64) -> Self {
        let rng = Rng::new(seed ^ 0x5eed);
        let mut rates = Self::default();
        for fault in Fault::ALL {
            if rng.below(2) == 1 {
                rates = rates.with(fault, 1 << rng.below(9));
            }
        }
        rates
    }

    /// With another kind, or another rate of it.
    #[must_use]
    pub fn with(mut self, fault: Fault, per_ten_thousand: u32) -> Self {
        self.0.retain(|(known, _)| *known != fault);
        self.0.push((fault, per_ten_thousand));
        self
    }

    pub(super) fn draw(&self, rng: &Rng, point: &Point) -> Option<Fault> {
        let mut at = rng.below(10_000);
        for (fault, rate) in &self.0 {
            match at.checked_sub(u64::from(*rate)) {
                Some(rest) => at = rest,
                None => return Some(*fault).filter(|fault| fault.fits(point)),
            }
        }
        None
    }
}

/// Which fault happens at which call, and the seed of everything else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    seed: u64,
    faults: BTreeMap<u64, Fault>,
    rates: Option<Rates>,
}

impl Plan {
    /// Nothing goes wrong.
    pub fn none() -> Self {
        Self::default()
    }

    /// Faults drawn at every call. The ones that happened are in [`super::Outcome::placed`], from
    /// which an explicit plan of the same run is made.
    pub fn random(seed: u64, rates: Rates) -> Self {
        Self { seed, faults: BTreeMap::new(), rates: Some(rates) }
    }

    /// With this fault at this point.
    #[must_use]
    pub fn with(mut self, point: u64, fault: Fault) -> Self {
        self.faults.insert(point, fault);
        self
    }

    /// With this seed for the simulation.
    #[must_use]
    pub fn seeded(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The seed for the simulation.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The faults that are placed.
    pub fn faults(&self) -> &BTreeMap<u64, Fault> {
        &self.faults
    }

    pub(super) fn rates(&self) -> Option<&Rates> {
        self.rates.as_ref()
    }

    /// The explicit plan of these faults, with this plan's seed.
    #[must_use]
    pub fn explicit(&self, faults: impl IntoIterator<Item = (u64, Fault)>) -> Self {
        Self { seed: self.seed, faults: faults.into_iter().collect(), rates: None }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (point, fault)) in self.faults.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{point}:{fault}")?;
        }
        Ok(())
    }
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut plan = Plan::none();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (point, fault) =
                part.split_once(':').ok_or_else(|| format!("\"{part}\" is not point:fault"))?;
            let point = point.parse().map_err(|_| format!("\"{point}\" is not a point"))?;
            plan.faults.insert(point, fault.parse()?);
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_its_text() {
        let text = "3:crash_after,17:pause,20:clock_jump=-20000ms,21:store_down=5000ms";
        let plan: Plan = text.parse().unwrap();
        assert_eq!(plan.to_string(), text);
        assert_eq!(plan.faults()[&17], Fault::Pause(PAUSE));
        for fault in Fault::ALL {
            assert_eq!(fault.to_string().parse(), Ok(fault));
        }
        assert_eq!("".parse(), Ok(Plan::none()));
        assert!("x:pause".parse::<Plan>().is_err() && "1:sneeze".parse::<Plan>().is_err());
        assert!(
            "1:ambiguous=5ms".parse::<Plan>().is_err() && "1:late=-5ms".parse::<Plan>().is_err()
        );
    }

    #[test]
    fn rates_are_met() {
        let rates = Rates::default().with(Fault::Ambiguous, 1000).with(Fault::FailBefore, 500);
        let rng = Rng::new(1);
        let point = |access| Point { op: "Record", node: "a".into(), access, forgets: false };
        let (write, inside) = (point(Access::Write), point(Access::CrashPoint));
        let drawn: Vec<_> = (0..10_000).filter_map(|_| rates.draw(&rng, &write)).collect();
        let ambiguous = drawn.iter().filter(|fault| **fault == Fault::Ambiguous).count();
        assert!((800..1200).contains(&ambiguous), "{ambiguous}");
        assert!((1300..1700).contains(&drawn.len()), "{}", drawn.len());
        assert!((0..1000).all(|_| rates.draw(&rng, &inside).is_none()));
    }
}
