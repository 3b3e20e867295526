//! The boundaries as two tables: layers between our crates, and homes for other people's.
//!
//! Invariants: a crate that is not in `LAYERS` may not exist under `crates/`; a library that is not
//! in `PINS` may be used anywhere.
//! Deliberately absent: exceptions by file. A use that needs one belongs in another crate.

use Place::{NotIn, OnlyIn};

/// One crate of ours and the crates of ours it may use.
pub(crate) struct Layer {
    /// The folder under `crates/`.
    pub(crate) folder: &'static str,
    pub(crate) package: &'static str,
    pub(crate) uses: &'static [&'static str],
}

const fn layer(
    folder: &'static str,
    package: &'static str,
    uses: &'static [&'static str],
) -> Layer {
    Layer { folder, package, uses }
}

/// Proof may use everything it proves, and is itself only ever a dev-dependency.
pub(crate) const TESTKIT: &str = "steadfast-testkit";

/// Who may use whom; tests may also use what is reachable from here, and the testkit.
pub(crate) const LAYERS: &[Layer] = &[
    layer("core", "steadfast-core", &[]),
    layer("store", "steadfast-store", &["steadfast-core"]),
    layer("runtime-native", "steadfast-runtime-native", &["steadfast-core", "steadfast-store"]),
    layer("runtime-temporal", "steadfast-runtime-temporal", &["steadfast-core"]),
    layer("runtime-dbos", "steadfast-runtime-dbos", &["steadfast-core"]),
    layer("connectors", "steadfast-connectors", &["steadfast-core"]),
    layer("policy-cedar", "steadfast-policy-cedar", &["steadfast-core"]),
    layer(
        "steadfast",
        "steadfast",
        &["steadfast-core", "steadfast-store", "steadfast-runtime-native"],
    ),
    layer("server", "steadfast-server", &["steadfast"]),
    layer("sync", "steadfast-sync", &["steadfast-core", "steadfast-connectors", "steadfast"]),
    layer(
        "cli",
        "steadfast-cli",
        &[
            "steadfast",
            "steadfast-connectors",
            "steadfast-policy-cedar",
            "steadfast-server",
            "steadfast-store",
            "steadfast-sync",
        ],
    ),
    layer(
        "testkit",
        TESTKIT,
        &[
            "steadfast-core",
            "steadfast-store",
            "steadfast-runtime-native",
            "steadfast-runtime-temporal",
            "steadfast-runtime-dbos",
            "steadfast-connectors",
            "steadfast-policy-cedar",
            "steadfast",
            "steadfast-server",
            "steadfast-cli",
        ],
    ),
];

/// Where a library may be used.
pub(crate) enum Place {
    OnlyIn(&'static [&'static str]),
    NotIn(&'static [&'static str]),
}

/// Other people's crates and their home among ours.
pub(crate) struct Pin {
    /// Package names; a trailing `*` stands for any ending.
    pub(crate) libraries: &'static [&'static str],
    pub(crate) place: Place,
    /// Whether the testkit, the examples and the tools are bound as well.
    pub(crate) binds_tools: bool,
    /// Whether tests are bound as well.
    pub(crate) binds_tests: bool,
    pub(crate) why: &'static str,
}

const fn pin(libraries: &'static [&'static str], place: Place, why: &'static str) -> Pin {
    Pin { libraries, place, binds_tools: false, binds_tests: true, why }
}

pub(crate) const PINS: &[Pin] = &[
    pin(
        &["rusqlite", "tokio-postgres", "mysql_async", "deadpool-postgres"],
        OnlyIn(&["steadfast-store", "steadfast-connectors"]),
        "database drivers stay in store and connectors",
    ),
    pin(
        &["reqwest", "async-nats"],
        OnlyIn(&["steadfast-connectors"]),
        "outward sockets stay in connectors",
    ),
    Pin {
        binds_tools: true,
        ..pin(
            &["cedar-policy*"],
            OnlyIn(&["steadfast-policy-cedar"]),
            "a policy language stays in its stage",
        )
    },
    pin(&["axum"], OnlyIn(&["steadfast-server"]), "HTTP stays in server"),
    pin(&["clap"], OnlyIn(&["steadfast-cli"]), "arguments are parsed in cli"),
    Pin {
        binds_tools: true,
        ..pin(
            &["temporalio*"],
            OnlyIn(&["steadfast-runtime-temporal"]),
            "a runtime library stays in its adapter",
        )
    },
    Pin {
        binds_tools: true,
        ..pin(
            &["dbos"],
            OnlyIn(&["steadfast-runtime-dbos"]),
            "a runtime library stays in its adapter",
        )
    },
    Pin {
        binds_tests: false,
        ..pin(
            &["tokio"],
            NotIn(&["steadfast-core", "steadfast-runtime-native"]),
            "meaning and execution name no executor",
        )
    },
];

impl Pin {
    /// Whether this pin speaks about the library.
    pub(crate) fn names(&self, library: &str) -> bool {
        self.libraries.iter().any(|name| match name.strip_suffix('*') {
            Some(stem) => library.starts_with(stem),
            None => library == *name,
        })
    }

    /// Whether the package may use the library.
    pub(crate) fn allows(&self, package: &str) -> bool {
        let is_tool = package == TESTKIT || LAYERS.iter().all(|layer| layer.package != package);
        if is_tool && !self.binds_tools {
            return true;
        }
        match self.place {
            OnlyIn(homes) => homes.contains(&package),
            NotIn(banned) => !banned.contains(&package),
        }
    }
}

/// Whether `user` may depend on `used`, both ours.
pub(crate) fn may_use(user: &str, used: &str, dev: bool) -> bool {
    if dev { used == TESTKIT || reaches(user, used) } else { direct(user).contains(&used) }
}

/// Everything below a crate: a test may name it, since that turns no arrow around.
fn reaches(user: &str, used: &str) -> bool {
    direct(user).iter().any(|next| *next == used || reaches(next, used))
}

fn direct(package: &str) -> &'static [&'static str] {
    LAYERS.iter().find(|layer| layer.package == package).map_or(&[], |layer| layer.uses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_point_one_way() {
        assert!(may_use("steadfast-store", "steadfast-core", false));
        assert!(!may_use("steadfast-core", "steadfast-store", false));
        assert!(!may_use("steadfast-core", "steadfast-store", true));
        assert!(!may_use("steadfast-server", "steadfast-store", false));
    }

    #[test]
    fn tests_may_use_the_testkit_and_what_lies_below() {
        assert!(may_use("steadfast-core", TESTKIT, true));
        assert!(!may_use("steadfast-core", TESTKIT, false));
        assert!(may_use("steadfast-server", "steadfast-store", true));
    }

    #[test]
    fn a_star_stands_for_any_ending() {
        let pin = &PINS.iter().find(|pin| pin.names("temporalio-sdk")).expect("is pinned");
        assert!(!pin.allows("xtask"));
        assert!(!pin.allows(TESTKIT));
        assert!(pin.allows("steadfast-runtime-temporal"));
    }

    #[test]
    fn other_peoples_crates_have_their_homes() {
        let homes = |library: &str, homes: &[&str]| {
            let pin = PINS.iter().find(|pin| pin.names(library)).expect("is pinned");
            for layer in LAYERS.iter().filter(|layer| layer.package != TESTKIT) {
                let home = homes.contains(&layer.package);
                assert_eq!(pin.allows(layer.package), home, "{library} in {}", layer.package);
            }
        };
        homes("reqwest", &["steadfast-connectors"]);
        homes("cedar-policy", &["steadfast-policy-cedar"]);
        homes("cedar-policy-core", &["steadfast-policy-cedar"]);
        for driver in ["rusqlite", "tokio-postgres", "mysql_async"] {
            homes(driver, &["steadfast-store", "steadfast-connectors"]);
        }
    }

    #[test]
    fn every_used_crate_has_a_layer_of_its_own() {
        for used in LAYERS.iter().flat_map(|layer| layer.uses) {
            assert!(LAYERS.iter().any(|layer| layer.package == *used), "{used}");
        }
    }
}
