//! Mutants of what commands, effects, approvals and meters are written with.

use super::table::{Mutant, Rule, sql};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant(
        "Submit",
        "the key of a command is taken over",
        sql(
            "command_insert",
            "{{or_keep:command_id}}",
            "ON CONFLICT (workspace, command_id) DO UPDATE SET payload = excluded.payload \
             ON CONFLICT DO NOTHING",
        ),
    ),
    Mutant(
        "Submit",
        "a repeated duplicate counts again",
        sql(
            "duplicate_insert",
            "{{or_keep:nonce}}",
            "ON CONFLICT (workspace, command_id, nonce) DO UPDATE SET ingress = excluded.ingress",
        ),
    ),
    Mutant(
        "Submit",
        "duplicates are not counted",
        sql("command_collapse", "collapsed + 1", "collapsed"),
    ),
    Mutant(
        "Submit",
        "a command without a run stays",
        sql("command_delete", "AND command_id", "AND 1 = 0 AND command_id"),
    ),
    Mutant(
        "Submit",
        "the expiry is not kept",
        sql("command_insert", ":completed_at, :expires_at", ":completed_at, NULL"),
    ),
    Mutant(
        "CancelCommand",
        "what waits for the command goes on waiting",
        sql(
            "dependency_children",
            "d.parent_command_id = :command_id",
            "d.parent_command_id < :command_id",
        ),
    ),
    Mutant(
        "CancelCommand",
        "its events are not counted",
        sql("command_move", "events = events + 1", "events = events"),
    ),
    Mutant(
        "CancelCommand",
        "its questions stay open",
        sql("approval_pending", "command_id = :command_id", "command_id < :command_id"),
    ),
    Mutant(
        "CancelCommand",
        "the reason is not kept",
        sql("command_move", "error = :error", "error = error"),
    ),
    Mutant(
        "SettleCommands",
        "what has expired is found later",
        sql("command_due", "due_at <= :now", "due_at < :now - 1000000"),
    ),
    Mutant(
        "SettleCommands",
        "only one is settled at a time",
        sql("command_due", "LIMIT :limit", "LIMIT 1"),
    ),
    Mutant(
        "SettleCommands",
        "a worker that asks for time gets none",
        sql("command_hold", "due_at = :due_at", "due_at = due_at"),
    ),
    Mutant(
        "SettleCommands",
        "what waits for the command goes on waiting",
        sql(
            "dependency_children",
            "d.parent_command_id = :command_id",
            "d.parent_command_id < :command_id",
        ),
    ),
    Mutant("Tell", "what is told twice fails", sql("event_insert", "{{or_keep:event_id}}", "")),
    Mutant("Tell", "the trace is lost", sql("event_insert", ":trace_id", "''")),
    Mutant(
        "Supply",
        "the payload is not taken",
        sql("command_supply", "payload = :payload", "payload = payload"),
    ),
    Mutant(
        "Supply",
        "other commands get the payload",
        sql("command_supply", "AND command_id = :command_id", ""),
    ),
    Mutant(
        "Supply",
        "a repeated supply is not known",
        sql("event_said", "event_id = :event_id", "event_id < :event_id"),
    ),
    Mutant(
        "TakeBack",
        "what undoes is undone",
        sql("effect_to_undo", "AND compensates_effect_id IS NULL", ""),
    ),
    Mutant(
        "TakeBack",
        "what was undone is undone again",
        sql("effect_to_undo", "AND compensated_at IS NULL", ""),
    ),
    Mutant(
        "TakeBack",
        "the new run is for the old version",
        sql("run_set_version", "app_version = :app_version", "app_version = app_version"),
    ),
    Mutant(
        "TakeBack",
        "a repeated request is not known",
        sql("event_said", "event_id = :event_id", "event_id < :event_id"),
    ),
    Mutant(
        "Depend",
        "a circle is not seen",
        sql(
            "dependency_parents",
            "d.child_command_id = :command_id",
            "d.child_command_id < :command_id",
        ),
    ),
    Mutant(
        "Depend",
        "a repeated dependency fails",
        sql("dependency_insert", "{{or_keep:parent_command_id}}", ""),
    ),
    Mutant(
        "Depend",
        "what is required is forgotten",
        sql("dependency_insert", ":required_status", "'ended'"),
    ),
    Mutant(
        "Spend",
        "a repeated request takes twice",
        sql(
            "meter_mark",
            "{{or_keep:meter}}",
            "ON CONFLICT (workspace, meter) DO UPDATE SET moment = excluded.moment",
        ),
    ),
    Mutant("Spend", "nothing is taken", sql("meter_update", "amount = :amount", "amount = amount")),
    Mutant("Spend", "a rate has no memory", sql("meter_update", "moment = :at", "moment = moment")),
    Mutant("Spend", "all meters are taken from", sql("meter_update", "AND meter = :meter", "")),
    Mutant(
        "SweepMeters",
        "budgets that are over stay",
        sql("meter_past", "OR meter >= :first AND meter < :last", ""),
    ),
    Mutant(
        "SweepMeters",
        "a sweep has no limit",
        sql("meter_past", "LIMIT :limit", "LIMIT 100000"),
    ),
    Mutant(
        "SweepMeters",
        "all meters go at once",
        sql("meter_remove", "AND meter = :meter AND past_at <= :now", ""),
    ),
    Mutant(
        "EnterCalls",
        "a repeated call is charged twice",
        sql(
            "invocation_insert",
            "{{or_keep:invocation_id}}",
            "ON CONFLICT (workspace, invocation_id) DO UPDATE SET error = excluded.error",
        ),
    ),
    Mutant(
        "EnterCalls",
        "nothing is charged",
        sql("meter_update", "amount = :amount", "amount = amount"),
    ),
    Mutant(
        "Decide",
        "a vote changes all votes",
        sql("vote_update", "AND approver = :approver", ""),
    ),
    Mutant(
        "Decide",
        "a changed mind is not kept",
        sql("vote_update", "vote = :vote", "vote = vote"),
    ),
    Mutant(
        "Decide",
        "an answered question stays due",
        sql("approval_move", "due_at = {{never}}", "due_at = due_at"),
    ),
    Mutant(
        "Decide",
        "who gave the payload may approve it",
        sql("event_by", "AND actor = :actor", "AND actor < :actor AND actor > :actor"),
    ),
    Mutant("Decide", "whoever asked may approve it", Rule("nobody approves what they asked for")),
    Mutant("Decide", "an answer after the end counts", Rule("an answer comes in time")),
    Mutant(
        "SettleApprovals",
        "questions are escalated before their time",
        sql("approval_due", "due_at <= :now {{and_due}}", "due_at < {{never}}"),
    ),
    Mutant(
        "SettleApprovals",
        "a question is escalated again and again",
        sql("approval_wait", "due_at = :due_at", "due_at = due_at"),
    ),
    Mutant(
        "SettleApprovals",
        "a question is not over",
        sql("approval_move", "decided_at = :now", "decided_at = decided_at"),
    ),
    Mutant(
        "Resolve",
        "the result is not kept",
        sql("effect_move", "result = :result", "result = result"),
    ),
    Mutant(
        "Resolve",
        "who said it before is not known",
        sql("event_resolved", "event_id >= :first", "event_id > :last"),
    ),
    Mutant(
        "Resolve",
        "other effects are resolved as well",
        sql("effect_move", "AND domain_effect_id = :effect_id", ""),
    ),
];
