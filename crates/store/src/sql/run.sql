-- Runs: creating, claiming, moving, ending.
-- A guarded update names the status it leaves; zero rows is an answer. `prev_status = status` stands
-- first in SET because MySQL evaluates left to right.

-- name: run_insert
INSERT INTO run ({{run_columns}}, prev_status, sort_rank, workspace)
VALUES (:run_id, :workflow, :status, :input, NULL, NULL, :queue, :partition_key, :priority, :dedupe_id,
    :app_version, :worker, :epoch, :attempts, :max_attempts, :created_at, :created_at, :started_at, NULL,
    :ready_at, :wake_at, :parked, :waits, :timeout_us, :deadline_at, :forked_from, :parent, :detached, 0, :seed, 0,
    :context, '', :sort_rank, :workspace)
{{or_keep:run_id}};

-- The default queue, as long as nobody has given it limits: then nothing is to be asked before.
-- name: run_insert_open
INSERT INTO run ({{run_columns}}, prev_status, sort_rank, workspace)
SELECT :run_id, :workflow, :status, :input, NULL, NULL, :queue, :partition_key, :priority, :dedupe_id,
    :app_version, :worker, :epoch, :attempts, :max_attempts, :created_at, :created_at, :started_at, NULL,
    :ready_at, :wake_at, :parked, :waits, :timeout_us, :deadline_at, :forked_from, :parent, :detached, 0, :seed, 0,
    :context, '', :sort_rank, :workspace
FROM (SELECT 1 AS one) AS once
WHERE NOT EXISTS (SELECT 1 FROM queue WHERE queue.workspace = :workspace AND queue.name = :queue)
{{or_keep:run_id}};

-- name: run_get
SELECT {{run_columns}} FROM run WHERE workspace = :workspace AND run_id = :run_id;

-- name: run_lock
SELECT {{run_columns}} FROM run WHERE workspace = :workspace AND run_id = :run_id {{for_update}};

-- name: run_fence
SELECT epoch FROM run
WHERE workspace = :workspace AND run_id = :run_id AND epoch = :epoch AND worker = :worker
    AND status = 'PENDING' AND {{in_time}} {{for_update}};

-- name: run_owner
SELECT parent, queue, dedupe_id, context FROM run
WHERE workspace = :workspace AND run_id = :run_id AND epoch = :epoch AND worker = :worker
    AND status = 'PENDING' AND {{in_time}} {{for_update}};

-- name: run_dequeue_select
SELECT sort_rank, {{run_columns}} FROM run {{by_line}}
WHERE workspace = :workspace AND queue = :queue AND status = 'ENQUEUED' {{and_active}}
    AND partition_key = :partition_key AND ready_at <= :now AND {{for_worker}} AND {{in_time}}
ORDER BY sort_rank, ready_at, run_id LIMIT :limit {{skip_locked}};

-- The same behind a place in line. What was claimed stays in the index for a while, and whoever begins at the first
-- place passes by all of it.
-- name: run_dequeue_select_behind
SELECT sort_rank, {{run_columns}} FROM run {{by_line}}
WHERE workspace = :workspace AND queue = :queue AND status = 'ENQUEUED' {{and_active}}
    AND partition_key = :partition_key AND {{behind}} AND ready_at <= :now AND {{for_worker}} AND {{in_time}}
ORDER BY sort_rank, ready_at, run_id LIMIT :limit {{skip_locked}};

-- name: run_next_partition
SELECT partition_key FROM run
WHERE workspace = :workspace AND queue = :queue AND status = 'ENQUEUED' {{and_active}} AND partition_key > :after
ORDER BY partition_key LIMIT 1;

-- name: run_has_partition
SELECT partition_key FROM run
WHERE workspace = :workspace AND queue = :queue AND status = 'ENQUEUED' {{and_active}} AND partition_key = ''
LIMIT 1;

-- name: run_next_ready
SELECT ready_at FROM run {{by_line}}
WHERE workspace = :workspace AND queue = :queue AND status = 'ENQUEUED' {{and_active}} AND partition_key = ''
    AND ready_at > :now
ORDER BY sort_rank, ready_at LIMIT 1;

-- name: run_claim
UPDATE {{or_fail}} run {{by_key}} SET {{as_claimed}}
WHERE {{these_runs}} AND status = :from;

-- Nothing for a worker that was superseded: what was taken from it is due, and not for it.
-- name: run_wake_select
SELECT {{run_columns}} FROM run
WHERE workspace = :workspace AND wake_at <= :now {{and_waking}} AND {{for_worker}} AND {{in_time}}
    AND queue NOT IN (:full_queues) AND {{place}} NOT IN (:full_places)
    AND NOT EXISTS (SELECT 1 FROM worker
        WHERE worker.workspace = :workspace AND worker.worker = :worker AND worker.superseded_by <> '')
ORDER BY wake_at, run_id LIMIT :limit {{skip_locked}};

-- Active runs whose deadline has passed. `wake_at` is never later than the deadline, so the index of what is due finds
-- them, whether they wait on a queue, are suspended, or have an owner.
-- name: run_overdue_select
SELECT {{run_columns}} FROM run
WHERE workspace = :workspace AND wake_at <= :now {{and_waking}} AND deadline_at <= :now
ORDER BY wake_at, run_id LIMIT :limit {{skip_locked}};

-- name: run_next_wake
SELECT wake_at FROM run
WHERE workspace = :workspace AND wake_at > :now {{and_waking}}
ORDER BY wake_at LIMIT 1;

-- Fences the owners of a range of names off: their runs are due at once, under another epoch.
-- name: run_take_over
UPDATE run SET wake_at = {{least}}(wake_at, :now), epoch = epoch + :stride
WHERE workspace = :workspace AND wake_at < {{never}} AND status = 'PENDING' AND parked = 0
    AND worker >= :first AND worker < :end AND worker <> :worker;

-- Ends the leases of a worker that does not report any more. The next claim raises the epoch.
-- name: run_lose
UPDATE run SET wake_at = :now
WHERE workspace = :workspace AND wake_at > :now AND wake_at < {{never}} AND status = 'PENDING'
    AND parked = 0 AND worker = :worker;

-- name: run_beat
UPDATE run SET wake_at = {{least}}(:lease_until, {{until_deadline}})
WHERE {{these_runs}} AND worker = :worker AND status = 'PENDING' AND parked = 0
    AND wake_at < :lease_until;

-- name: run_owned
SELECT run_id, epoch FROM run
WHERE {{these_runs}} AND worker = :worker AND status = 'PENDING' AND parked = 0;

-- name: run_end
UPDATE run SET prev_status = status, status = :to, output = :output, error = :error, worker = '',
    wake_at = {{never}}, parked = 0, waits = '', finished_at = :now, updated_at = :now
WHERE workspace = :workspace AND run_id = :run_id AND status = :from AND epoch = :epoch;

-- The same with its fence, unless somebody is to be told: then there is nothing to be asked before.
-- name: run_end_untold
UPDATE run SET prev_status = status, status = :to, output = :output, error = :error, worker = '',
    wake_at = {{never}}, parked = 0, waits = '', finished_at = :now, updated_at = :now
WHERE workspace = :workspace AND run_id = :run_id AND status = :from AND epoch = :epoch
    AND worker = :worker AND {{in_time}} AND {{untold}};

-- An owner's attempts may go on until it hears of the stop. Resumed, the run does not begin before its lease is over,
-- unless the owner has let go.
-- name: run_stop
UPDATE run SET prev_status = status, status = :to, error = :error,
    ready_at = CASE WHEN worker = '' THEN ready_at ELSE wake_at END, worker = '', epoch = epoch + 1,
    wake_at = {{never}}, parked = 0, waits = '', finished_at = :now, updated_at = :now
WHERE workspace = :workspace AND run_id = :run_id AND status = :from;

-- name: run_suspend
UPDATE run SET worker = '', parked = 1, wake_at = {{least}}(:wake_at, {{until_deadline}}), waits = :waits,
    updated_at = :now
WHERE workspace = :workspace AND run_id = :run_id AND status = 'PENDING' AND epoch = :epoch
    AND worker = :worker AND inbox = :inbox AND {{in_time}};

-- name: run_release
UPDATE run SET worker = '', parked = 1, wake_at = {{least}}(:now, {{until_deadline}}), updated_at = :now
WHERE workspace = :workspace AND run_id = :run_id AND status = 'PENDING' AND epoch = :epoch
    AND worker = :worker;

-- name: run_let_go
UPDATE run SET ready_at = :now
WHERE workspace = :workspace AND run_id = :run_id AND epoch = :epoch AND worker = '';

-- name: run_renew
UPDATE run SET input = :input, generation = generation + 1, epoch = epoch + 1, started_at = :now,
    updated_at = :now
WHERE workspace = :workspace AND run_id = :run_id AND status = 'PENDING' AND epoch = :epoch
    AND worker = :worker AND generation = :generation AND {{in_time}};

-- name: run_resume
UPDATE run SET prev_status = status, status = :to, error = NULL, attempts = 0, ready_at = :ready_at,
    partition_key = :partition_key, sort_rank = :sort_rank, finished_at = NULL, deadline_at = NULL,
    dedupe_id = :dedupe_id, updated_at = :now
WHERE workspace = :workspace AND run_id = :run_id AND status = :from;

-- name: run_arrive
UPDATE run SET inbox = inbox + 1,
    wake_at = CASE WHEN parked = 1 AND wake_at > :now THEN :now ELSE wake_at END
WHERE workspace = :workspace AND run_id = :run_id AND status IN ('ENQUEUED', 'PENDING');

-- Of a run that has never begun: one that was resumed waits on its queue, too, and keeps its input.
-- name: run_replace_input
UPDATE run SET input = :input, ready_at = :ready_at, updated_at = :now
WHERE workspace = :workspace AND run_id = :run_id AND status = 'ENQUEUED' AND epoch = 0 AND {{in_time}};

-- name: run_fork_fields
UPDATE run SET generation = :generation, seed = :seed, started_at = :started_at, fork_request = :fork_request
WHERE workspace = :workspace AND run_id = :run_id;

-- name: run_fork_request
SELECT forked_from, fork_request FROM run
WHERE workspace = :workspace AND run_id = :run_id {{for_update}};

-- name: run_purge_select
SELECT run_id FROM run
WHERE workspace = :workspace AND created_at < :before AND finished_at < :before {{and_listed}}
ORDER BY created_at, run_id LIMIT :limit {{skip_locked}};

-- name: run_purge
DELETE FROM run WHERE {{these_runs}};

-- name: run_list
SELECT {{run_columns}} FROM run
WHERE workspace = :workspace AND {{conditions}} {{and_listed}}
ORDER BY created_at DESC, run_id DESC LIMIT :limit;

-- name: run_over
SELECT {{run_columns}} FROM run
WHERE {{these_runs}}
    AND (finished_at IS NOT NULL OR deadline_at <= :now);

-- name: run_known
SELECT run_id FROM run WHERE {{these_runs}};

-- By the children's own rows: the parent's records are gone once it has continued as new. That a
-- parent is not empty is repeated because the index holds only such runs.
-- name: run_attached_children
SELECT run_id FROM run
WHERE workspace = :workspace AND parent = :run_id AND parent <> '' AND detached = 0
    AND status IN ('ENQUEUED', 'PENDING')
ORDER BY created_at, run_id;

-- name: run_set_version
UPDATE run SET app_version = :app_version WHERE workspace = :workspace AND run_id = :run_id;

-- name: run_set_rank
UPDATE run SET sort_rank = CASE WHEN :priorities = 1 THEN priority WHEN priority >= :background THEN 1 ELSE 0 END
WHERE workspace = :workspace AND queue = :queue AND status = 'ENQUEUED' {{and_active}};

-- name: run_clear_partition
UPDATE run SET partition_key = ''
WHERE workspace = :workspace AND queue = :queue AND status = 'ENQUEUED' {{and_active}} AND partition_key > '';

-- name: run_held
SELECT COUNT(*) FROM run
WHERE workspace = :workspace AND queue = :queue AND status = 'PENDING' {{and_active}} AND partition_key = :partition_key;

-- name: run_waiting
SELECT COUNT(*) FROM run
WHERE workspace = :workspace AND queue = :queue AND status = 'ENQUEUED' {{and_active}} AND partition_key = :partition_key;

-- name: run_holders
SELECT run_id, worker, wake_at FROM run
WHERE workspace = :workspace AND queue = :queue AND status = 'PENDING' {{and_active}} AND partition_key = :partition_key
ORDER BY run_id LIMIT 100;
