//! Mutants of what triggers, activities, events and sinks are written with.

use super::table::{Mutant, sql};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant(
        "PutTrigger",
        "a definition that was changed since is lost",
        sql("trigger_update", "AND version = :version", ""),
    ),
    Mutant(
        "PutTrigger",
        "the version stays",
        sql("trigger_update", "version = version + 1", "version = version"),
    ),
    Mutant(
        "PutTrigger",
        "a second creation replaces the first",
        sql(
            "trigger_insert",
            "{{or_keep:trigger_id}}",
            "ON CONFLICT (workspace, trigger_id) DO UPDATE SET spec = excluded.spec",
        ),
    ),
    Mutant(
        "Advance",
        "a slow scheduler advances again",
        sql("trigger_advance", "AND version = :version", ""),
    ),
    Mutant(
        "Advance",
        "the cursor stays",
        sql("trigger_advance", "cursor_at = :cursor_at", "cursor_at = cursor_at"),
    ),
    Mutant(
        "Advance",
        "a slot that was filled by hand is decided again",
        sql(
            "slot_write",
            "{{or_keep:nominal_at}}",
            "ON CONFLICT (workspace, trigger_id, nominal_at) \
             DO UPDATE SET reason = excluded.reason",
        ),
    ),
    Mutant(
        "Advance",
        "a command that is over is in the way",
        sql("slot_active", "c.completed_at IS NULL AND ", ""),
    ),
    Mutant(
        "Advance",
        "a command that is active is not in the way",
        sql("slot_active", "c.completed_at IS NULL", "c.completed_at IS NOT NULL"),
    ),
    Mutant(
        "Backfill",
        "a slot does not get its command",
        sql("slot_move", "command_id = :command_id", "command_id = command_id"),
    ),
    Mutant(
        "Backfill",
        "the slots of other triggers are filled",
        sql("slot_move", "AND trigger_id = :trigger_id", ""),
    ),
    Mutant(
        "Backfill",
        "what the slot was is not seen",
        sql("slot_status", "nominal_at = :nominal_at", "nominal_at < :nominal_at"),
    ),
    Mutant(
        "LogActivity",
        "a repeated execution is noted again",
        sql("activity_insert", "{{or_keep:run_id}}", ""),
    ),
    Mutant(
        "LogActivity",
        "a repeated task is noted again",
        sql("task_insert", "{{or_keep:id}}", ""),
    ),
    Mutant(
        "LogActivity",
        "it fired when it began",
        sql("activity_insert", "c.workflow_id = :workflow_id", "c.workflow_id < :workflow_id"),
    ),
    Mutant("Seal", "an event has no link", sql("event_seal", "hash = :hash", "hash = ''")),
    Mutant("Seal", "the head keeps its link", sql("chain_move", "hash = :hash", "hash = hash")),
    Mutant("Seal", "the head stays", sql("chain_move", "seq = :seq,", "seq = seq,")),
    Mutant(
        "Seal",
        "the youngest get the first numbers",
        sql(
            "event_unsealed",
            "ORDER BY created_at, event_id",
            "ORDER BY created_at DESC, event_id",
        ),
    ),
    Mutant(
        "Retain",
        "what a sink has not sent is removed",
        sql("event_old", "AND e.seq <= :upto", ""),
    ),
    Mutant(
        "Retain",
        "events of all purposes are removed",
        sql("event_old", "AND e.purpose = :purpose", ""),
    ),
    Mutant(
        "Retain",
        "young events are removed",
        sql("event_old", "AND e.created_at < :before", ""),
    ),
    Mutant(
        "Retain",
        "what a sink has parked is removed",
        sql(
            "event_old",
            "WHERE p.workspace = e.workspace",
            "WHERE 1 = 0 AND p.workspace = e.workspace",
        ),
    ),
    Mutant(
        "Retain",
        "removed events leave no digest",
        sql(
            "tombstone_insert",
            "VALUES (:workspace, :seq, :digest, :now)",
            "SELECT :workspace, :seq, :digest, :now WHERE 1 = 0",
        ),
    ),
    Mutant(
        "Retain",
        "the beginning of the chain stays",
        sql("chain_rebase", "base_seq = :from", "base_seq < :from"),
    ),
    Mutant("PutSink", "a new sink begins at the beginning", sql("sink_insert", ":cursor_seq", "0")),
    Mutant(
        "PutSink",
        "a sink that moved keeps its old place",
        sql("sink_describe", "place = :place", "place = place"),
    ),
    Mutant("PutSink", "all sinks move", sql("sink_describe", "AND sink = :sink", "")),
    Mutant("SetSink", "a sender goes on", sql("sink_set", "epoch = epoch + 1", "epoch = epoch")),
    Mutant(
        "SetSink",
        "the reason is not kept",
        sql("sink_set", "reason = :reason", "reason = reason"),
    ),
    Mutant("SetSink", "all sinks are set", sql("sink_set", "AND sink = :sink", "")),
    Mutant(
        "TakeOutbox",
        "two senders have one epoch",
        sql("sink_take", "epoch = epoch + 1", "epoch = epoch"),
    ),
    Mutant(
        "TakeOutbox",
        "the lease is over at once",
        sql("sink_take", "lease_until = :lease_until", "lease_until = 0"),
    ),
    Mutant("TakeOutbox", "dead letters are sent", sql("parked_list", "AND state = 'parked'", "")),
    Mutant(
        "TakeOutbox",
        "the last event is sent again",
        sql("outbox_fresh", "e.seq > :after", "e.seq >= :after"),
    ),
    Mutant("TakeOutbox", "a batch has no limit", sql("outbox_fresh", "LIMIT :limit", "LIMIT 1000")),
    Mutant("SettleOutbox", "an old epoch settles", sql("sink_settle", "AND epoch = :epoch", "")),
    Mutant("SettleOutbox", "another sender settles", sql("sink_settle", "AND owner = :owner", "")),
    Mutant(
        "SettleOutbox",
        "a cursor goes back",
        sql("sink_settle", "AND cursor_seq <= :cursor_seq", ""),
    ),
    Mutant(
        "SettleOutbox",
        "all parked events are done",
        sql("parked_delete", "AND seq = :seq", ""),
    ),
    Mutant(
        "SettleOutbox",
        "old marks stay",
        sql("mark_forget", "marked_at < :before", "marked_at > :before"),
    ),
    Mutant(
        "Redrive",
        "what is parked is sent at once",
        sql("parked_redrive", "AND state = 'dead'", ""),
    ),
    Mutant(
        "Redrive",
        "a letter keeps its attempts",
        sql("parked_redrive", "attempt = 0", "attempt = attempt"),
    ),
    Mutant(
        "Redrive",
        "all letters are sent again",
        sql("parked_redrive_one", "AND event_id = :event_id", ""),
    ),
    Mutant(
        "Redrive",
        "a repeated request is not known",
        sql("event_said", "event_id = :event_id", "event_id < :event_id"),
    ),
];
