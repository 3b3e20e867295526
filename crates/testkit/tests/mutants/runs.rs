//! Mutants of what begins, claims and steers runs.

use super::table::{Mutant, sql};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant(
        "Start",
        "an id that is taken is taken over",
        sql(
            "run_insert",
            "{{or_keep:run_id}}",
            "ON CONFLICT (run_id, workspace) DO UPDATE SET input = excluded.input",
        ),
    ),
    Mutant(
        "Start",
        "a deduplication id goes to the last who wants it",
        sql(
            "dedupe_insert",
            "{{or_keep:dedupe_id}}",
            "ON CONFLICT (workspace, queue, dedupe_id) DO UPDATE SET run_id = excluded.run_id",
        ),
    ),
    Mutant(
        "Start",
        "a run has no rank",
        sql("run_insert", ":context, '', :sort_rank", ":context, '', 0"),
    ),
    Mutant("Start", "a deadline is not kept", sql("run_insert", ":deadline_at", "NULL")),
    Mutant(
        "Debounce",
        "a key is shared by workflows",
        sql("debounce_get", "AND workflow = :workflow", ""),
    ),
    Mutant(
        "Debounce",
        "the input of a resumed run is replaced",
        sql("run_replace_input", "AND epoch = 0", ""),
    ),
    Mutant(
        "Debounce",
        "a call does not push the start back",
        sql("run_replace_input", "ready_at = :ready_at", "ready_at = ready_at"),
    ),
    Mutant(
        "Debounce",
        "a run past its deadline is replaced",
        sql("run_replace_input", "AND {{in_time}}", ""),
    ),
    Mutant(
        "Debounce",
        "a repeated call is not known",
        sql("debounce_update", "calls = :calls", "calls = calls"),
    ),
    Mutant(
        "Dequeue",
        "a claim does not raise the epoch",
        sql("run_claim", "{{as_claimed}}", "{{as_claimed}}, epoch = epoch"),
    ),
    Mutant(
        "Dequeue",
        "a run begins before it is ready",
        sql("run_dequeue_select", "AND ready_at <= :now", ""),
    ),
    Mutant(
        "Dequeue",
        "a worker gets what it has no code for",
        sql("run_dequeue_select", "AND {{for_worker}}", ""),
    ),
    Mutant(
        "Dequeue",
        "a claim takes from all partitions",
        sql("run_dequeue_select", "AND partition_key = :partition_key", ""),
    ),
    Mutant(
        "Dequeue",
        "a claim takes more than its limit",
        sql("run_dequeue_select", "LIMIT :limit", "LIMIT 100"),
    ),
    Mutant(
        "Dequeue",
        "the youngest goes first",
        sql(
            "run_dequeue_select",
            "ORDER BY sort_rank, ready_at,",
            "ORDER BY sort_rank, ready_at DESC,",
        ),
    ),
    Mutant(
        "Dequeue",
        "a rate counts what has left its window",
        sql("start_count", "AND started_at > :after", ""),
    ),
    Mutant(
        "Dequeue",
        "a slot whose lease ran out counts",
        sql("slot_held", "AND lease_until > :now", ""),
    ),
    Mutant(
        "Dequeue",
        "runs do not count against the limit",
        sql("run_held", "status = 'PENDING'", "status = 'SUCCESS'"),
    ),
    Mutant(
        "Dequeue",
        "an overdue run is claimed",
        sql("run_dequeue_select", "AND {{in_time}}", ""),
    ),
    Mutant(
        "Wake",
        "a lease that is good is taken",
        sql("run_wake_select", "wake_at <= :now", "wake_at < {{never}}"),
    ),
    Mutant(
        "Wake",
        "a claim does not raise the epoch",
        sql("run_claim", "{{as_claimed}}", "{{as_claimed}}, epoch = epoch"),
    ),
    Mutant(
        "Wake",
        "a recovery counts no attempt",
        sql("run_claim", "{{as_claimed}}", "{{as_claimed}}, attempts = attempts"),
    ),
    Mutant(
        "Wake",
        "a worker gets what it has no code for",
        sql("run_wake_select", "AND {{for_worker}}", ""),
    ),
    Mutant(
        "Wake",
        "an overdue run keeps its owner's epoch",
        sql("run_stop", "epoch = epoch + 1", "epoch = epoch"),
    ),
    Mutant(
        "Wake",
        "the children of an overdue run go on",
        sql("run_attached_children", "parent = :run_id", "parent = :run_id AND 1 = 0"),
    ),
    Mutant(
        "TakeOver",
        "a worker takes its own leases over",
        sql("run_take_over", "AND worker <> :worker", ""),
    ),
    Mutant(
        "TakeOver",
        "the leases of all workers run out",
        sql("run_take_over", "AND worker >= :first AND worker < :end", ""),
    ),
    Mutant(
        "TakeOver",
        "the former incarnation keeps its epoch",
        sql("run_take_over", "epoch = epoch + :stride", "epoch = epoch"),
    ),
    Mutant(
        "TakeOver",
        "the former incarnation is not told",
        sql("worker_supersede", "SET superseded_by = :worker", "SET superseded_by = superseded_by"),
    ),
    Mutant(
        "EndLeases",
        "the leases of all workers end",
        sql("run_lose", "AND worker = :worker", ""),
    ),
    Mutant(
        "EndLeases",
        "the slots of the silent worker stay taken",
        sql("slot_lose", "AND worker = :worker", "AND worker < :worker"),
    ),
    Mutant(
        "EndLeases",
        "the leases go on",
        sql("run_lose", "SET wake_at = :now", "SET wake_at = wake_at"),
    ),
    Mutant(
        "DefineQueue",
        "the definition is not remembered",
        sql("queue_update", "definition = :definition", "definition = definition"),
    ),
    Mutant(
        "DefineQueue",
        "the first definition is not remembered",
        sql("queue_insert", ":paused, :definition, :now", ":paused, NULL, :now"),
    ),
    Mutant("TakeOver", "nothing is taken over", sql("run_take_over", "parked = 0", "parked = 1")),
    Mutant(
        "Cancel",
        "the owner keeps its epoch",
        sql("run_stop", "epoch = epoch + 1", "epoch = epoch"),
    ),
    Mutant(
        "Cancel",
        "detached children are stopped as well",
        sql("run_attached_children", "AND detached = 0", ""),
    ),
    Mutant(
        "Cancel",
        "slots stay taken",
        sql("slot_clear", "run_id IN (:run_ids)", "run_id IN (:run_ids) AND 1 = 0"),
    ),
    Mutant(
        "Cancel",
        "the deduplication id stays taken",
        sql("dedupe_delete", "AND run_id = :run_id", "AND run_id < :run_id"),
    ),
    Mutant(
        "Cancel",
        "the parent is not woken",
        sql("run_arrive", "WHERE workspace", "WHERE 1 = 0 AND workspace"),
    ),
    Mutant(
        "Resume",
        "the budget of recoveries is not renewed",
        sql("run_resume", "attempts = 0", "attempts = attempts"),
    ),
    Mutant(
        "Resume",
        "the old deadline holds",
        sql("run_resume", "deadline_at = NULL", "deadline_at = deadline_at"),
    ),
    Mutant(
        "Resume",
        "a run goes to a partition that its queue has no more",
        sql("run_resume", "partition_key = :partition_key", "partition_key = partition_key"),
    ),
    Mutant(
        "Resume",
        "the deduplication id of another run is taken",
        sql(
            "dedupe_insert",
            "{{or_keep:dedupe_id}}",
            "ON CONFLICT (workspace, queue, dedupe_id) DO UPDATE SET run_id = excluded.run_id",
        ),
    ),
    Mutant(
        "Resume",
        "a run whose effects were taken back goes on",
        sql("effect_undone_any", "command_id = :command_id", "command_id < :command_id"),
    ),
    Mutant(
        "Fork",
        "one step too many is copied",
        sql("step_copy", "function_id < :from", "function_id <= :from"),
    ),
    Mutant("Fork", "unfinished steps are copied", sql("step_copy", "AND state = 'done'", "")),
    Mutant(
        "Fork",
        "a patch changes the source as well",
        sql("step_patch", "AND run_id = :run_id AND", "AND"),
    ),
    Mutant(
        "Fork",
        "values from behind the cut are copied",
        sql("value_copy", "AND (generation < :generation OR function_id < :from)", ""),
    ),
    Mutant(
        "Fork",
        "items from behind the cut are copied",
        sql("stream_copy", "AND (generation < :generation OR function_id < :from)", ""),
    ),
    Mutant(
        "Fork",
        "the generation begins anew",
        sql("run_fork_fields", "generation = :generation", "generation = generation"),
    ),
    Mutant(
        "PutQueue",
        "a queue cannot be paused",
        sql("queue_update", "paused = :paused", "paused = paused"),
    ),
    Mutant(
        "PutQueue",
        "what waits keeps its old order",
        sql("run_set_rank", "status = 'ENQUEUED'", "status = 'PENDING'"),
    ),
    Mutant(
        "PutQueue",
        "the partitions of other queues are lost",
        sql("run_clear_partition", "AND queue = :queue", ""),
    ),
    Mutant(
        "PutQueue",
        "another workspace's queue is changed",
        sql("queue_update", "workspace = :workspace AND", ""),
    ),
    Mutant(
        "Purge",
        "what ended since is removed",
        sql("run_purge_select", "AND finished_at < :before", "AND finished_at IS NOT NULL"),
    ),
    Mutant(
        "Purge",
        "what is active is removed",
        sql("run_purge_select", "AND finished_at < :before", ""),
    ),
    Mutant(
        "Purge",
        "a purge has no limit",
        sql("run_purge_select", "LIMIT :limit", "LIMIT 100000"),
    ),
    Mutant(
        "Purge",
        "records stay behind",
        sql("step_clear", "run_id IN (:run_ids)", "run_id IN (:run_ids) AND 1 = 0"),
    ),
    Mutant(
        "Purge",
        "debounce keys stay behind",
        sql("debounce_clear", "run_id IN (:run_ids)", "run_id IN (:run_ids) AND 1 = 0"),
    ),
];
