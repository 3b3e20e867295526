//! Mutants of what owners of runs write, and of what arrives for them.

use super::table::{Mutant, Rule, sql};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant("Heartbeat", "a lease is shortened", sql("run_beat", "AND wake_at < :lease_until", "")),
    Mutant(
        "Heartbeat",
        "a lease goes beyond the deadline",
        sql("run_beat", "{{least}}(:lease_until, {{until_deadline}})", ":lease_until"),
    ),
    Mutant(
        "Heartbeat",
        "the lease of a later claim is extended",
        Rule("only the leases that were named are extended"),
    ),
    Mutant(
        "Heartbeat",
        "the slot of an earlier claim is extended",
        sql("slot_beat", "AND run.epoch = slot.epoch", ""),
    ),
    Mutant(
        "Heartbeat",
        "a slot that ran out comes back",
        sql("slot_beat", "AND lease_until > :now", ""),
    ),
    Mutant(
        "Heartbeat",
        "the worker is not seen again",
        sql("worker_update", "seen_at = :now", "seen_at = seen_at"),
    ),
    Mutant("Record", "an old epoch writes", sql("step_insert_held", "AND epoch = :epoch", "")),
    Mutant("Record", "another worker writes", sql("step_insert_held", "AND worker = :worker", "")),
    Mutant("Record", "an overdue run writes", sql("step_insert_held", "AND {{in_time}}", "")),
    Mutant("Record", "several records have no fence", sql("run_fence", "AND epoch = :epoch", "")),
    Mutant(
        "Record",
        "a record is written over",
        sql(
            "step_insert_held",
            "{{or_keep:function_id}}",
            "ON CONFLICT (run_id, workspace, function_id) DO UPDATE SET output = excluded.output",
        ),
    ),
    Mutant(
        "Record",
        "a done record is settled again",
        sql("step_settle", "AND state <> 'done'", ""),
    ),
    Mutant(
        "Record",
        "a signal is consumed twice",
        sql("signal_consume", "AND consumed_by = -1", ""),
    ),
    Mutant(
        "Record",
        "a stream begins anew with each item",
        sql("stream_insert", "AND stream = :stream) AS next", "AND stream < :stream) AS next"),
    ),
    Mutant("Finish", "an old epoch ends a run", sql("run_end_untold", "AND epoch = :epoch", "")),
    Mutant(
        "Finish",
        "another worker ends a run",
        sql("run_end_untold", "AND worker = :worker", ""),
    ),
    Mutant("Finish", "an overdue run succeeds", sql("run_end_untold", "AND {{in_time}}", "")),
    Mutant("Finish", "nobody is told of the end", sql("run_end_untold", "AND {{untold}}", "")),
    Mutant(
        "Finish",
        "the deduplication id stays taken",
        sql("dedupe_delete", "AND run_id = :run_id", "AND run_id < :run_id"),
    ),
    Mutant("Finish", "a child's old epoch ends it", sql("run_owner", "AND epoch = :epoch", "")),
    Mutant(
        "Suspend",
        "what arrived meanwhile is missed",
        sql("run_suspend", "AND inbox = :inbox", ""),
    ),
    Mutant(
        "Suspend",
        "a run sleeps beyond its deadline",
        sql("run_suspend", "{{least}}(:wake_at, {{until_deadline}})", ":wake_at"),
    ),
    Mutant(
        "Suspend",
        "what it waits for is not kept",
        sql("run_suspend", "waits = :waits", "waits = ''"),
    ),
    Mutant("Suspend", "a lost lease may write", Rule("the lease is the run's newest")),
    Mutant(
        "Release",
        "an old epoch gives a run back",
        sql("run_release", "AND epoch = :epoch", ""),
    ),
    Mutant(
        "Release",
        "another worker gives a run back",
        sql("run_release", "AND worker = :worker", ""),
    ),
    Mutant(
        "Release",
        "a run is given back late",
        sql("run_release", "{{least}}(:now, {{until_deadline}})", "wake_at"),
    ),
    Mutant(
        "ContinueAsNew",
        "another generation continues",
        sql("run_renew", "AND generation = :generation", ""),
    ),
    Mutant(
        "ContinueAsNew",
        "the epoch stays",
        sql("run_renew", "epoch = epoch + 1", "epoch = epoch"),
    ),
    Mutant(
        "ContinueAsNew",
        "the generation stays",
        sql("run_renew", "generation = generation + 1", "generation = generation"),
    ),
    Mutant(
        "ContinueAsNew",
        "old records stay",
        sql("step_clear", "run_id IN (:run_ids)", "run_id IN (:run_ids) AND 1 = 0"),
    ),
    Mutant(
        "ContinueAsNew",
        "values that count are removed",
        sql("value_settle", "AND version < (SELECT", "AND version <= (SELECT"),
    ),
    Mutant("TimeOut", "a lost lease ends the run", Rule("the lease is the run's newest")),
    Mutant("TimeOut", "a run ends before its deadline", Rule("the deadline has passed")),
    Mutant(
        "TimeOut",
        "the children go on",
        sql("run_attached_children", "parent = :run_id", "parent = :run_id AND 1 = 0"),
    ),
    Mutant(
        "TimeOut",
        "the owner keeps its epoch",
        sql("run_stop", "epoch = epoch + 1", "epoch = epoch"),
    ),
    Mutant(
        "Signal",
        "the id of a consumed signal is forgotten",
        sql(
            "signal_known",
            "AND signal_id = :signal_id",
            "AND signal_id = :signal_id AND consumed_by = -1",
        ),
    ),
    Mutant(
        "Signal",
        "an arrival is not counted",
        sql("run_arrive", "inbox = inbox + 1", "inbox = inbox"),
    ),
    Mutant(
        "Signal",
        "a suspended run is not woken",
        sql(
            "run_arrive",
            "WHEN parked = 1 AND wake_at > :now THEN :now",
            "WHEN parked = 2 THEN :now",
        ),
    ),
    Mutant("Signal", "an owner loses its lease", sql("run_arrive", "parked = 1 AND ", "")),
    Mutant(
        "Signal",
        "the numbers of signals begin anew",
        sql("signal_end", "MAX(seq)", "MIN(seq)"),
    ),
    Mutant("TakeSlot", "an old epoch takes a slot", sql("run_fence", "AND epoch = :epoch", "")),
    Mutant("TakeSlot", "an overdue run takes a slot", sql("run_fence", "AND {{in_time}}", "")),
    Mutant(
        "TakeSlot",
        "a slot that ran out counts",
        sql("slot_held", "AND lease_until > :now", ""),
    ),
    Mutant(
        "TakeSlot",
        "a slot counts in every partition",
        sql("slot_held", "AND partition_key = :partition_key", ""),
    ),
    Mutant(
        "TakeSlot",
        "a rate forgets too early",
        sql("start_prune", "AND (started_at <= :after OR started_at > :until)", ""),
    ),
    Mutant(
        "FreeSlot",
        "all slots of the run are freed",
        sql("slot_delete", "AND function_id = :function_id", ""),
    ),
    Mutant("FreeSlot", "the slot of another owner is freed", Rule("a slot is its owner's")),
];
