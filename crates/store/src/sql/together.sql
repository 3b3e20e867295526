-- Much in one statement. First, many operations of different runs on Postgres: whole rows come as one array
-- of rows, a few columns as arrays side by side. The workspace comes with every row, so that runs are looked up by their
-- key: a server that has not counted yet takes a single workspace for a small part of the table.

-- name: all_run_insert
INSERT INTO run ({{run_columns}}, prev_status, sort_rank, workspace)
SELECT {{new_run}}, '', n.sort_rank, n.workspace FROM unnest(:rows::run[]) AS n
ON CONFLICT DO NOTHING
RETURNING run_id;

-- The fences are in the statement that writes: the rows of runs are locked as they are met, in the order
-- in which they are given. A record that is there already is an error, and spoils the batch: to look for it
-- before would cost every record a look.
-- name: all_step_insert
INSERT INTO step (workspace, {{step_columns}}, run_id, epoch)
SELECT n.workspace, {{step_columns_of_n}}, n.run_id, n.epoch
FROM unnest(:rows::step[]) AS n
JOIN run ON run.workspace = n.workspace AND run.run_id = n.run_id AND run.epoch = n.epoch
    AND run.worker = :worker AND run.status = 'PENDING' AND (run.deadline_at IS NULL OR run.deadline_at > :at)
FOR NO KEY UPDATE OF run;

-- The last records of runs that end in the same batch: there the end checks the fence, and spoils the batch.
-- name: all_step_insert_last
INSERT INTO step (workspace, {{step_columns}}, run_id, epoch)
SELECT n.workspace, {{step_columns_of_n}}, n.run_id, n.epoch
FROM unnest(:rows::step[]) AS n;

-- name: all_run_held
SELECT run.run_id, run.epoch, run.worker
FROM unnest(:workspace, :run_id, :now) AS n (workspace, run_id, now)
JOIN run ON run.workspace = n.workspace AND run.run_id = n.run_id AND run.status = 'PENDING' AND {{in_time_of_n}};

-- name: all_run_end
UPDATE run SET {{as_ended_by_n}}
FROM unnest(:workspace, :run_id, :epoch, :worker, :to, :output, :error, :now)
    AS n (workspace, run_id, epoch, worker, status, output, error, now)
WHERE run.workspace = n.workspace AND run.run_id = n.run_id AND run.epoch = n.epoch
    AND run.worker = n.worker AND run.status = 'PENDING' AND {{in_time_of_n}}
RETURNING run.run_id, run.parent, run.queue, run.dedupe_id, run.context;

-- name: all_run_suspend
UPDATE run SET worker = '', parked = 1, wake_at = LEAST(n.wake_at, run.deadline_at), waits = n.waits,
    updated_at = n.now
FROM unnest(:workspace, :run_id, :epoch, :worker, :inbox, :wake_at, :waits, :now)
    AS n (workspace, run_id, epoch, worker, inbox, wake_at, waits, now)
WHERE run.workspace = n.workspace AND run.run_id = n.run_id AND run.epoch = n.epoch
    AND run.worker = n.worker AND run.status = 'PENDING' AND run.inbox = n.inbox AND {{in_time_of_n}}
RETURNING run.run_id;

-- A whole batch that is its own commit, and which of its runs were written. What an operation comes to is written
-- wholly or not at all. Ends are those of runs of which nobody is to be told; starts are those on a queue of the
-- workspace `:home` that was never made. First, a batch of ends, then one of whatever there is: what has no rows costs a
-- statement a little all the same.
-- `IS TRUE` has the ended runs looked up in a table of hashes; as a join, each record would be compared with all of them.

-- name: ended_and_closed
ended AS (
    UPDATE run SET {{as_ended_by_n}}
    FROM unnest(:workspace, :run_id, :epoch, :to, :output, :error, :now)
        AS n (workspace, run_id, epoch, status, output, error, now)
    WHERE run.workspace = n.workspace AND run.run_id = n.run_id AND run.epoch = n.epoch
        AND run.worker = :worker AND run.status = 'PENDING' AND {{in_time_of_n}} AND {{untold}}
    RETURNING run.run_id
), closed AS (
    INSERT INTO step (workspace, {{step_columns}}, run_id, epoch)
    SELECT n.workspace, {{step_columns_of_n}}, n.run_id, n.epoch
    FROM unnest(:last::step[]) AS n WHERE (n.run_id IN (SELECT run_id FROM ended)) IS TRUE
);

-- name: whole_end
WITH {{the:ended_and_closed}}
SELECT run_id FROM ended;

-- name: whole_write
WITH started AS (
    INSERT INTO run ({{run_columns}}, prev_status, sort_rank, workspace)
    SELECT {{new_run}}, '', n.sort_rank, n.workspace FROM unnest(:starts::run[]) AS n
    WHERE NOT EXISTS (SELECT 1 FROM queue WHERE queue.workspace = :home AND queue.name = :queue)
    ON CONFLICT DO NOTHING
    RETURNING run_id
), recorded AS (
    INSERT INTO step (workspace, {{step_columns}}, run_id, epoch)
    SELECT n.workspace, {{step_columns_of_n}}, n.run_id, n.epoch
    FROM unnest(:records::step[]) AS n
    JOIN run ON run.workspace = n.workspace AND run.run_id = n.run_id AND run.epoch = n.epoch
        AND run.worker = :worker AND run.status = 'PENDING' AND (run.deadline_at IS NULL OR run.deadline_at > :at)
    FOR NO KEY UPDATE OF run
    RETURNING run_id
), {{the:ended_and_closed}}
SELECT run_id FROM started UNION ALL SELECT run_id FROM recorded UNION ALL SELECT run_id FROM ended;

-- A run's last record and its end, where nobody else is to be told of it: both are written, or neither. A record that
-- is there already is an error.
-- name: run_finish_held
WITH ended AS (
    UPDATE run SET prev_status = status, status = :to, output = :result, error = :failure, worker = '',
        wake_at = {{never}}, parked = 0, waits = '', finished_at = :now, updated_at = :now
    WHERE workspace = :workspace AND run_id = :run_id AND epoch = :epoch AND worker = :worker
        AND status = 'PENDING' AND {{in_time}} AND {{untold}}
    RETURNING workspace, run_id, epoch
)
INSERT INTO step (workspace, {{step_columns}}, run_id, epoch)
SELECT workspace, :function_id, :seq, :name, :kind, :state, :input, :input_digest, :output,
    :error, :child_run_id, :attempt, :started_at, :completed_at, :next_at, run_id, epoch FROM ended;

-- What is first in line on a queue, found, locked and claimed. The first look says where in the table it lies. A queue
-- that has partitions, or limits that must be counted, is not for this; nor is what waits if any of it is a command's,
-- which may have expired. A claim does not wait for the disk: whatever is written under it comes later in the server's
-- log and waits for both. A claim that is lost with the server is made again with another epoch (decision 20).
-- name: run_dequeue_claim
WITH line AS (
    SELECT ctid AS place, context FROM run
    WHERE workspace = :workspace AND queue = :queue AND status = 'ENQUEUED' {{and_active}}
        AND partition_key = '' AND {{behind}} AND ready_at <= :now AND {{for_worker}} AND {{in_time}}
    ORDER BY sort_rank, ready_at, run_id
    LIMIT (SELECT COALESCE(MAX(GREATEST(0, LEAST(:limit, worker_concurrency - :has))), 0) FROM queue
        WHERE workspace = :workspace AND name = :queue AND concurrency IS NULL AND rate_limit IS NULL
            AND partitioned = 0 AND paused = 0)
    {{skip_locked}}
)
UPDATE run SET {{as_claimed}}
WHERE ctid = ANY (ARRAY(SELECT place FROM line WHERE NOT EXISTS (SELECT 1 FROM line WHERE context IS NOT NULL)))
    AND (SELECT set_config('synchronous_commit', 'off', true)) <> ''
RETURNING (SELECT worker_concurrency FROM queue WHERE workspace = :workspace AND name = :queue),
    sort_rank, {{run_columns}};

-- Second, many operations of different runs on MySQL and MariaDB. What stands in double brackets is repeated for each of
-- `:rows`, the comma before the first left out; a repeated row changes nothing the second time. Runs are locked by their
-- key, in its order, whatever the server thinks of other indexes.

-- name: many_run_lock
SELECT run_id, epoch, inbox, parent, queue, dedupe_id, context FROM run {{by_key}}
WHERE workspace = :workspace AND run_id IN (:run_ids) AND worker = :worker AND status = 'PENDING' AND {{in_time}}
FOR UPDATE;

-- name: many_run_insert
INSERT INTO run ({{run_columns}}, prev_status, sort_rank, workspace)
VALUES [[, (:run_id, :workflow, :status, :input, NULL, NULL, :queue, :partition_key, :priority, '',
    :app_version, :worker, :epoch, :epoch, :max_attempts, :created_at, :created_at, :started_at, NULL,
    :ready_at, :wake_at, :parked, :waits, :timeout_us, :deadline_at, '', :parent, :detached, 0, :seed, 0,
    :context, '', :sort_rank, :workspace)]]
{{or_keep:run_id}};

-- name: many_step_insert
INSERT INTO step (workspace, {{step_columns}}, run_id, epoch)
VALUES [[, (:workspace, :function_id, :seq, :name, :kind, :state, :input, :input_digest, :output,
    :error, :child_run_id, :attempt, :started_at, :completed_at, :next_at, :run_id, :epoch)]]
{{or_keep:function_id}};

-- name: many_run_end
UPDATE run {{by_key}} SET {{as_ended}}
WHERE workspace = :workspace AND run_id IN ([[, :run_id]]);

-- The same where all have come to the same: each value that is looked for by its run costs as much as two of a row's
-- columns.
-- name: many_run_end_alike
UPDATE run {{by_key}} SET {{as_ended_alike}}
WHERE workspace = :workspace AND run_id IN ([[, :run_id]]);

-- The same where nobody is to be told of an end, with the fences.
-- name: many_run_end_plain
UPDATE run {{by_key}} SET {{as_ended_alike}}
WHERE workspace = :workspace AND run_id IN ([[, :run_id]]) AND worker = :worker AND status = 'PENDING'
    AND epoch = :epoch AND (deadline_at IS NULL OR deadline_at > :at) AND {{untold}};

-- name: many_run_suspend
UPDATE run {{by_key}} SET worker = '', parked = 1,
    wake_at = LEAST(CASE run_id[[ WHEN :run_id THEN :wake_at]] END, {{until_deadline}}),
    waits = CASE run_id[[ WHEN :run_id THEN :waits]] END,
    updated_at = CASE run_id[[ WHEN :run_id THEN :now]] END
WHERE workspace = :workspace AND run_id IN ([[, :run_id]]);
