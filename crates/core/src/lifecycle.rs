//! A lifecycle is a table of arrows: one line per legal move, and one function that takes them.
//!
//! Invariants: a [`Transition`] can only be made by taking an arrow, so a store that accepts
//! transitions and never pairs of states cannot be asked for an illegal move; the same table seeds
//! the database's own check and the generated `docs/lifecycles.md`.
//! Deliberately absent: hooks, guards and actions. A lifecycle says what may follow what, nothing
//! else.

use std::fmt;

/// One legal move from a state to a state, made only by a lifecycle's `on` function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition<S> {
    from: S,
    to: S,
}

impl<S: Copy> Transition<S> {
    #[doc(hidden)]
    pub const fn taken(from: S, to: S) -> Self {
        Self { from, to }
    }

    /// The state that is left.
    pub fn from(&self) -> S {
        self.from
    }

    /// The state that is entered.
    pub fn to(&self) -> S {
        self.to
    }
}

/// A move that no arrow allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IllegalTransition {
    /// Which lifecycle refused.
    pub machine: &'static str,
    /// The state it was in.
    pub from: &'static str,
    /// What was asked for.
    pub event: String,
}

impl fmt::Display for IllegalTransition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a {} in state {} does not accept {}", self.machine, self.from, self.event)
    }
}

impl std::error::Error for IllegalTransition {}

/// Declares a lifecycle: its states with their one spelling, its events, and its arrows.
macro_rules! lifecycle {
    (
        $(#[$doc:meta])*
        pub $state:ident on $event:ident as $machine:literal;
        start { $($start:ident)|+ }
        terminal { $($end:ident)|+ }
        arrows { $( $from:ident --($($ev:ident)|+)--> $to:ident; )+ }
        states { $( $(#[$sdoc:meta])* $name:ident = $spelling:literal, )+ }
        events { $( $(#[$edoc:meta])* $evname:ident, )+ }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $state { $( $(#[$sdoc])* $name, )+ }

        #[doc = concat!("What can happen to a ", $machine, ".")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $event { $( $(#[$edoc])* $evname, )+ }

        impl $state {
            /// Every state, in declaration order.
            pub const ALL: &'static [$state] = &[ $( $state::$name, )+ ];
            /// The states in which a life may begin.
            pub const START: &'static [$state] = &[ $( $state::$start, )+ ];
            /// Every arrow: from, event, to.
            pub const TABLE: &'static [($state, $event, $state)] =
                &[ $( $( ($state::$from, $event::$ev, $state::$to), )+ )+ ];

            /// The one spelling, used in Rust, SQL, JSON, metrics and the dashboard.
            pub const fn as_str(self) -> &'static str {
                match self { $( $state::$name => $spelling, )+ }
            }

            /// Reads the spelling; an unknown one is `None`, never a guess.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $( $spelling => Some($state::$name), )+ _ => None }
            }

            /// True when nothing happens by itself any more: only a person may move it on, if
            /// anyone.
            pub fn is_terminal(self) -> bool {
                matches!(self, $( $state::$end )|+)
            }

            /// Takes an arrow, or names the move that was refused.
            pub fn on(
                self,
                event: $event,
            ) -> Result<$crate::Transition<$state>, $crate::IllegalTransition> {
                Self::TABLE
                    .iter()
                    .find(|(from, ev, _)| *from == self && *ev == event)
                    .map(|(from, _, to)| $crate::Transition::taken(*from, *to))
                    .ok_or_else(|| $crate::IllegalTransition {
                        machine: $machine,
                        from: self.as_str(),
                        event: format!("{event:?}"),
                    })
            }

            /// The table as a Mermaid state diagram.
            pub fn mermaid() -> String {
                let mut text = String::from("stateDiagram-v2\n");
                for start in Self::START {
                    text.push_str(&format!("    [*] --> {}\n", start.as_str()));
                }
                for (from, event, to) in Self::TABLE {
                    text.push_str(&format!(
                        "    {} --> {}: {event:?}\n", from.as_str(), to.as_str()
                    ));
                }
                text
            }
        }

        impl std::fmt::Display for $state {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $state {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(self.as_str())
            }
        }
    };
}
