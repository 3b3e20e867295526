-- Queues, slots, rate windows, deduplication, workers.

-- name: queue_get
SELECT {{queue_columns}} FROM queue WHERE workspace = :workspace AND name = :name;

-- name: queue_lock
SELECT {{queue_columns}} FROM queue WHERE workspace = :workspace AND name = :name {{for_update}};

-- name: queue_list
SELECT {{queue_columns}} FROM queue WHERE workspace = :workspace ORDER BY name;

-- name: queue_list_limited
SELECT {{queue_columns}} FROM queue
WHERE workspace = :workspace AND worker_concurrency IS NOT NULL ORDER BY name;

-- The queue as it holds, and as code last defined it.
-- name: queue_defined
SELECT {{queue_columns}}, definition FROM queue WHERE workspace = :workspace AND name = :name;

-- name: queue_lock_defined
SELECT {{queue_columns}}, definition FROM queue WHERE workspace = :workspace AND name = :name {{for_update}};

-- name: queue_insert
INSERT INTO queue (workspace, {{queue_columns}}, definition, updated_at)
VALUES (:workspace, :name, :concurrency, :worker_concurrency, :rate_limit, :rate_period_us, :priorities,
    :partitioned, :paused, :definition, :now)
{{or_keep:name}};

-- name: queue_update
UPDATE queue SET concurrency = :concurrency, worker_concurrency = :worker_concurrency,
    rate_limit = :rate_limit, rate_period_us = :rate_period_us, priorities = :priorities,
    partitioned = :partitioned, paused = :paused, definition = :definition, updated_at = :now
WHERE workspace = :workspace AND name = :name;

-- name: start_insert
INSERT INTO queue_start (workspace, queue, partition_key, started_at, token)
VALUES (:workspace, :queue, :partition_key, :now, :token);

-- A start more than a period ahead was noted by a clock that is ahead: it is in no window of now.
-- name: start_count
SELECT COUNT(*), MIN(started_at) FROM queue_start
WHERE workspace = :workspace AND queue = :queue AND partition_key = :partition_key
    AND started_at > :after AND started_at <= :until;

-- name: start_prune
DELETE FROM queue_start
WHERE workspace = :workspace AND queue = :queue AND partition_key = :partition_key
    AND (started_at <= :after OR started_at > :until);

-- name: slot_insert
INSERT INTO slot (workspace, run_id, function_id, queue, partition_key, worker, epoch, lease_until)
VALUES (:workspace, :run_id, :function_id, :queue, :partition_key, :worker, :epoch, :lease_until);

-- name: slot_delete
DELETE FROM slot WHERE workspace = :workspace AND run_id = :run_id AND function_id = :function_id;

-- name: slot_of
SELECT worker, epoch FROM slot
WHERE workspace = :workspace AND run_id = :run_id AND function_id = :function_id;

-- name: slot_held
SELECT COUNT(*) FROM slot
WHERE workspace = :workspace AND queue = :queue AND partition_key = :partition_key AND lease_until > :now;

-- name: slot_holders
SELECT run_id, function_id, worker, lease_until FROM slot
WHERE workspace = :workspace AND queue = :queue AND partition_key = :partition_key AND lease_until > :now
ORDER BY run_id, function_id LIMIT 100;

-- name: slot_next
SELECT MIN(lease_until) FROM slot
WHERE workspace = :workspace AND queue = :queue AND partition_key = :partition_key AND lease_until > :now;

-- The runs are the caller's own; a slot of an earlier claim of one is not kept alive with it.
-- name: slot_beat
UPDATE slot SET lease_until = :lease_until
WHERE workspace = :workspace AND worker = :worker AND lease_until > :now
    AND lease_until < :lease_until AND run_id IN (:run_ids)
    AND EXISTS (SELECT 1 FROM run
        WHERE run.workspace = slot.workspace AND run.run_id = slot.run_id AND run.epoch = slot.epoch);

-- name: slot_clear
DELETE FROM slot WHERE workspace = :workspace AND run_id IN (:run_ids);

-- name: dedupe_insert
INSERT INTO dedupe (workspace, queue, dedupe_id, run_id, first_at)
VALUES (:workspace, :queue, :dedupe_id, :run_id, :now)
{{or_keep:dedupe_id}};

-- name: dedupe_get
SELECT run_id, first_at FROM dedupe
WHERE workspace = :workspace AND queue = :queue AND dedupe_id = :dedupe_id {{for_update}};

-- name: dedupe_delete
DELETE FROM dedupe
WHERE workspace = :workspace AND queue = :queue AND dedupe_id = :dedupe_id AND run_id = :run_id;

-- name: debounce_get
SELECT run_id, first_at, calls FROM debounce
WHERE workspace = :workspace AND workflow = :workflow AND debounce_key = :debounce_key {{for_update}};

-- name: debounce_insert
INSERT INTO debounce (workspace, workflow, debounce_key, run_id, first_at, calls)
VALUES (:workspace, :workflow, :debounce_key, :run_id, :first_at, :calls)
{{or_keep:run_id}};

-- name: debounce_update
UPDATE debounce SET run_id = :run_id, first_at = :first_at, calls = :calls
WHERE workspace = :workspace AND workflow = :workflow AND debounce_key = :debounce_key;

-- name: debounce_clear
DELETE FROM debounce WHERE workspace = :workspace AND run_id IN (:run_ids);

-- name: slot_take_over
DELETE FROM slot
WHERE workspace = :workspace AND worker >= :first AND worker < :end AND worker <> :worker;

-- name: slot_lose
DELETE FROM slot WHERE workspace = :workspace AND worker = :worker;

-- name: worker_insert
INSERT INTO worker (workspace, worker, app_version, workflows, lease_us, started_at, seen_at, superseded_by, lost)
VALUES (:workspace, :worker, :app_version, :workflows, :lease_us, :now, :now, '', 0)
{{or_keep:worker}};

-- name: worker_update
UPDATE worker SET app_version = :app_version, workflows = :workflows, lease_us = :lease_us, seen_at = :now, lost = 0
WHERE workspace = :workspace AND worker = :worker AND superseded_by = '';

-- name: worker_successor
SELECT superseded_by FROM worker WHERE workspace = :workspace AND worker = :worker;

-- A worker that was superseded may report after a long pause, and has to learn of it then.
-- name: worker_prune
DELETE FROM worker
WHERE workspace = :workspace AND seen_at < :before AND (superseded_by = '' OR seen_at < :long_before);

-- name: worker_former
SELECT worker, seen_at FROM worker
WHERE workspace = :workspace AND worker >= :first AND worker < :end AND worker <> :worker
    AND (superseded_by = '' OR superseded_by = :worker) AND lost = 0
ORDER BY worker;

-- name: worker_supersede
UPDATE worker SET superseded_by = :worker
WHERE workspace = :workspace AND worker >= :first AND worker < :end AND worker <> :worker
    AND superseded_by = '';

-- name: worker_peers
SELECT worker, seen_at, lease_us FROM worker
WHERE workspace = :workspace AND worker > :after AND worker <> :worker AND lost = 0
ORDER BY worker LIMIT :limit;

-- name: worker_seen
SELECT seen_at FROM worker WHERE workspace = :workspace AND worker = :worker {{for_update}};

-- name: worker_lose
UPDATE worker SET lost = 1 WHERE workspace = :workspace AND worker = :worker;

-- name: worker_list
SELECT worker, app_version, workflows, started_at, seen_at FROM worker
WHERE workspace = :workspace AND seen_at >= :since AND superseded_by = '' AND lost = 0 ORDER BY worker;
