//! Lines of the report: medians, ratios, spread.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::drivers::Outcome;
use super::plan::{Better, Case, Engine, Store};

/// One figure of ours, beside everybody else's.
pub(super) struct Line {
    workload: &'static str,
    variant: String,
    store: Store,
    unit: &'static str,
    better: Better,
    figures: BTreeMap<Engine, Figure>,
    commits_per_run: Option<f64>,
}

struct Figure {
    median: f64,
    /// How far the repetitions lie apart, as a part of the median.
    spread: f64,
}

impl Line {
    /// The lines of a case; memory is a line of its own.
    pub(super) fn of(
        case: &Case,
        store: Store,
        outcomes: &BTreeMap<Engine, Vec<Outcome>>,
    ) -> Vec<Line> {
        let line = |variant: String, unit, better, pick: &dyn Fn(&Outcome) -> Option<f64>| {
            let figure = |done: &Vec<Outcome>| Figure::of(done.iter().filter_map(pick).collect());
            let figures = outcomes.iter().filter_map(|(e, done)| Some((*e, figure(done)?)));
            let commits = |outcome: &Outcome| outcome.detail("commits_per_run");
            let ours = outcomes.get(&Engine::Ours);
            Line {
                workload: case.workload,
                variant,
                store,
                unit,
                better,
                figures: figures.collect(),
                commits_per_run: ours.and_then(|done| done.iter().find_map(commits)),
            }
        };
        let mut lines =
            vec![line(case.variant.to_owned(), case.unit, case.better, &|o| Some(o.value()))];
        for (detail, variant, unit, better) in [
            ("bytes", "memory of a suspended run", "bytes", Better::Lower),
            ("enqueue", "filling the queue", "runs/s", Better::Higher),
        ] {
            let more = line(variant.to_owned(), unit, better, &|o| o.detail(detail));
            if more.figures.contains_key(&Engine::Ours) && case.history == 0 {
                lines.push(more);
            }
        }
        lines
    }

    #[allow(clippy::print_stdout, reason = "the report is this program's output")]
    pub(super) fn print(&self, json: bool) {
        let Some(ours) = self.figures.get(&Engine::Ours) else {
            return;
        };
        let ratio = |theirs: f64| match self.better {
            Better::Higher => ours.median / theirs,
            Better::Lower => theirs / ours.median,
        };
        let peers = || self.figures.iter().filter(|(engine, _)| **engine != Engine::Ours);
        if json {
            let named = |of: &dyn Fn(&Figure) -> f64| -> Map<String, Value> {
                peers().map(|(e, figure)| (e.word().to_owned(), json!(round(of(figure))))).collect()
            };
            let line = json!({
                "workload": self.workload, "variant": self.variant, "store": self.store.word(),
                "ours": round(ours.median), "unit": self.unit, "spread": round(ours.spread),
                "peers": named(&|figure| figure.median), "ratio": named(&|f| ratio(f.median)),
                "peers_spread": named(&|figure| figure.spread),
                "commits_per_run": self.commits_per_run,
            });
            println!("{line}");
            return;
        }
        let place = format!("{} {} {}", self.workload, self.store.word(), self.variant);
        print!(
            "{place:<44} {:>10} {:<8} ±{:.0}%",
            short(ours.median),
            self.unit,
            ours.spread * 50.0
        );
        for (engine, figure) in peers() {
            print!("  {} {} ({:.1}x)", engine.word(), short(figure.median), ratio(figure.median));
        }
        println!();
    }
}

impl Figure {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let median = *values.get(values.len() / 2)?;
        let spread = (values[values.len() - 1] - values[0]) / median;
        Some(Self { median, spread })
    }
}

fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn short(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_the_median_and_how_far_the_rest_lies_apart() {
        let figure = Figure::of(vec![30.0, 10.0, 20.0]).unwrap();
        assert!((figure.median - 20.0).abs() < 1e-9 && (figure.spread - 1.0).abs() < 1e-9);
        assert!(Figure::of(Vec::new()).is_none());
    }
}
