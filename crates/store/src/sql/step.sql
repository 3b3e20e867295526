-- Records of a run, and what is written together with them.

-- name: step_insert
INSERT INTO step (workspace, {{step_columns}}, run_id, epoch)
VALUES (:workspace, :function_id, :seq, :name, :kind, :state, :input, :input_digest, :output,
    :error, :child_run_id, :attempt, :started_at, :completed_at, :next_at, :run_id, :epoch)
{{or_keep:function_id}};

-- A record and the fence it needs, in one: nothing is inserted unless the lease is good.
-- name: step_insert_held
INSERT {{or_fail}} INTO step (workspace, {{step_columns}}, run_id, epoch)
SELECT workspace, :function_id, :seq, :name, :kind, :state, :input, :input_digest, :output,
    :error, :child_run_id, :attempt, :started_at, :completed_at, :next_at, run_id, epoch FROM run
WHERE workspace = :workspace AND run_id = :run_id AND epoch = :epoch AND worker = :worker
    AND status = 'PENDING' AND {{in_time}} {{for_update}}
{{or_keep:function_id}};

-- name: step_settle
UPDATE step SET seq = :seq, state = :state, output = :output, error = :error, attempt = :attempt,
    completed_at = :completed_at, next_at = :next_at, epoch = :epoch
WHERE workspace = :workspace AND run_id = :run_id AND function_id = :function_id AND state <> 'done';

-- name: step_epoch
SELECT epoch, name, state FROM step
WHERE workspace = :workspace AND run_id = :run_id AND function_id = :function_id;

-- name: step_list
SELECT {{step_columns}} FROM step
WHERE workspace = :workspace AND run_id = :run_id AND function_id >= :from
ORDER BY function_id LIMIT :limit;

-- name: step_copy
INSERT INTO step (workspace, {{step_columns}}, run_id, epoch)
SELECT workspace, {{step_columns}}, :to, 0 FROM step
WHERE workspace = :workspace AND run_id = :source AND function_id < :from AND state = 'done';

-- name: step_patch
UPDATE step SET output = :output, error = :error
WHERE workspace = :workspace AND run_id = :run_id AND function_id = :function_id;

-- name: step_clear
DELETE FROM step WHERE workspace = :workspace AND run_id IN (:run_ids);

-- A new version. The owner holds the run's lock, so no other process numbers one.
-- name: value_insert
INSERT INTO run_value (workspace, run_id, value_key, version, value, generation, function_id, updated_at)
SELECT run.workspace, run.run_id, :value_key, next.version, :value, run.generation, :function_id, :now
FROM run CROSS JOIN (SELECT COALESCE(MAX(version), 0) + 1 AS version FROM run_value
    WHERE workspace = :workspace AND run_id = :run_id AND value_key = :value_key) AS next
WHERE run.workspace = :workspace AND run.run_id = :run_id;

-- name: value_get
SELECT value FROM run_value
WHERE workspace = :workspace AND run_id = :run_id AND value_key = :value_key
ORDER BY version DESC LIMIT 1;

-- What a fork needs no more once the run has continued as new: versions that others have replaced.
-- name: value_settle
DELETE FROM run_value
WHERE workspace = :workspace AND run_id = :run_id AND version < (SELECT version FROM
    (SELECT value_key, MAX(version) AS version FROM run_value
    WHERE workspace = :workspace AND run_id = :run_id GROUP BY value_key) AS newest
    WHERE newest.value_key = run_value.value_key);

-- What was published before the cut: in an earlier generation, or by a copied step.
-- name: value_copy
INSERT INTO run_value (workspace, run_id, value_key, version, value, generation, function_id, updated_at)
SELECT workspace, :to, value_key, version, value, generation, function_id, updated_at FROM run_value
WHERE workspace = :workspace AND run_id = :source AND (generation < :generation OR function_id < :from);

-- name: value_clear
DELETE FROM run_value WHERE workspace = :workspace AND run_id IN (:run_ids);

-- name: stream_insert
INSERT INTO stream_item (workspace, run_id, stream, seq, item, generation, function_id)
SELECT run.workspace, run.run_id, :stream, next.seq, :item, run.generation, :function_id
FROM run CROSS JOIN (SELECT COALESCE(MAX(seq), -1) + 1 AS seq FROM stream_item
    WHERE workspace = :workspace AND run_id = :run_id AND stream = :stream) AS next
WHERE run.workspace = :workspace AND run.run_id = :run_id;

-- What was appended before the cut, in the same order. An item of a later step may stand before one of an earlier
-- step, so the positions are counted anew.
-- name: stream_copy
INSERT INTO stream_item (workspace, run_id, stream, seq, item, generation, function_id)
SELECT workspace, :to, stream, ROW_NUMBER() OVER (PARTITION BY stream ORDER BY seq) - 1,
    item, generation, function_id FROM stream_item
WHERE workspace = :workspace AND run_id = :source AND (generation < :generation OR function_id < :from);

-- name: stream_read
SELECT item FROM stream_item
WHERE workspace = :workspace AND run_id = :run_id AND stream = :stream AND seq >= :from
ORDER BY seq LIMIT :limit;

-- name: stream_clear
DELETE FROM stream_item WHERE workspace = :workspace AND run_id IN (:run_ids);

-- name: signal_insert
INSERT INTO inbox_signal (workspace, run_id, seq, signal_id, name, payload, sent_at, consumed_by)
VALUES (:workspace, :run_id, :seq, :signal_id, :name, :payload, :now, -1);

-- name: signal_known
SELECT seq FROM inbox_signal
WHERE workspace = :workspace AND run_id = :run_id AND signal_id = :signal_id;

-- name: signal_end
SELECT COALESCE(MAX(seq), -1) FROM inbox_signal WHERE workspace = :workspace AND run_id = :run_id;

-- name: signal_pending
SELECT seq, name, payload FROM inbox_signal
WHERE workspace = :workspace AND run_id = :run_id AND consumed_by = -1 AND {{conditions}}
ORDER BY seq LIMIT :signals;

-- name: signal_consume
UPDATE inbox_signal SET consumed_by = :function_id
WHERE workspace = :workspace AND run_id = :run_id AND seq = :seq AND consumed_by = -1;

-- name: signal_clear
DELETE FROM inbox_signal WHERE workspace = :workspace AND run_id IN (:run_ids);
