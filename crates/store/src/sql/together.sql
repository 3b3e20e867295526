-- Many operations of different runs at once. Postgres alone: columns come as arrays, side by side. The
-- workspace comes with every row, so that runs are looked up by their key: a server that has not counted
-- yet takes a single workspace for a small part of the table.

-- name: all_run_insert
INSERT INTO run ({{run_columns}}, prev_status, sort_rank, workspace)
SELECT n.run_id, n.workflow, n.status, n.input, NULL, NULL, n.queue, n.partition_key, n.priority, '',
    n.app_version, n.worker, n.epoch, n.epoch, n.max_attempts, n.created_at, n.created_at, n.started_at,
    NULL, n.ready_at, n.wake_at, 0, '', n.timeout_us, n.deadline_at, '', n.parent, n.detached, 0, n.seed, 0,
    n.context, '', n.sort_rank, n.workspace
FROM unnest(:workspace, :run_id, :workflow, :status, :input, :queue, :partition_key, :priority, :app_version, :worker,
    :epoch, :max_attempts, :created_at, :started_at, :ready_at, :wake_at, :timeout_us, :deadline_at, :parent,
    :detached, :seed, :context, :sort_rank)
    AS n (workspace, run_id, workflow, status, input, queue, partition_key, priority, app_version, worker, epoch,
        max_attempts, created_at, started_at, ready_at, wake_at, timeout_us, deadline_at, parent, detached,
        seed, context, sort_rank)
ON CONFLICT DO NOTHING
RETURNING run_id;

-- name: all_run_lock
SELECT run.run_id, run.status, run.epoch, run.worker, run.parent, run.queue, run.dedupe_id, run.context
FROM unnest(:workspace, :run_id) AS n (workspace, run_id)
JOIN run ON run.workspace = n.workspace AND run.run_id = n.run_id
ORDER BY run.run_id FOR UPDATE OF run;

-- name: all_step_insert
INSERT INTO step (workspace, {{step_columns}}, run_id, epoch)
SELECT n.workspace, n.function_id, n.seq, n.name, n.kind, n.state, n.input, n.output, n.error, n.child_run_id,
    n.attempt, n.started_at, n.completed_at, n.next_at, n.run_id, n.epoch
FROM unnest(:workspace, :run_id, :epoch, :function_id, :seq, :name, :kind, :state, :input, :output, :error,
    :child_run_id, :attempt, :started_at, :completed_at, :next_at)
    AS n (workspace, run_id, epoch, function_id, seq, name, kind, state, input, output, error, child_run_id, attempt,
        started_at, completed_at, next_at)
ON CONFLICT DO NOTHING;

-- name: all_run_end
UPDATE run SET prev_status = run.status, status = n.status, output = n.output, error = n.error, worker = '',
    wake_at = {{never}}, parked = 0, waits = '', finished_at = n.now, updated_at = n.now
FROM unnest(:workspace, :run_id, :epoch, :to, :output, :error, :now)
    AS n (workspace, run_id, epoch, status, output, error, now)
WHERE run.workspace = n.workspace AND run.run_id = n.run_id AND run.epoch = n.epoch
    AND run.status = 'PENDING';

-- name: all_run_suspend
UPDATE run SET worker = '', parked = 1, wake_at = n.wake_at, waits = n.waits, updated_at = n.now
FROM unnest(:workspace, :run_id, :epoch, :inbox, :wake_at, :waits, :now)
    AS n (workspace, run_id, epoch, inbox, wake_at, waits, now)
WHERE run.workspace = n.workspace AND run.run_id = n.run_id AND run.epoch = n.epoch
    AND run.status = 'PENDING' AND run.inbox = n.inbox
RETURNING run.run_id;
