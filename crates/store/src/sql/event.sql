-- Events on their way out: numbers and links, retention, sinks.

-- name: event_unsealed
SELECT {{event_columns}} FROM domain_events {{by_unsealed}}
WHERE workspace = :workspace AND seq IS NULL
ORDER BY created_at, event_id LIMIT :limit;

-- name: event_waits
SELECT {{event_columns}} FROM domain_events
WHERE workspace = :workspace AND event_id IN (:event_ids) AND seq IS NULL;

-- name: event_seal
UPDATE domain_events SET seq = :seq, hash = :hash
WHERE workspace = :workspace AND event_id = :event_id AND seq IS NULL;

-- name: event_sealed
SELECT seq, hash, {{event_columns}} FROM domain_events
WHERE workspace = :workspace AND seq > :after
ORDER BY seq LIMIT :limit;

-- What has left every sink that is sent to, and waits for none.
-- name: event_old
SELECT e.seq, {{event_columns_of_e}} FROM domain_events e
WHERE e.workspace = :workspace AND e.created_at < :before AND e.purpose = :purpose AND e.seq <= :upto
    AND e.event_type <> :told_by
    AND NOT EXISTS (SELECT 1 FROM event_parked p WHERE p.workspace = e.workspace AND p.seq = e.seq)
ORDER BY e.created_at, e.event_id LIMIT :limit;

-- The same of those that tell of a removal.
-- name: event_old_removals
SELECT e.seq, {{event_columns_of_e}} FROM domain_events e
WHERE e.workspace = :workspace AND e.created_at < :before AND e.purpose = :purpose AND e.seq <= :upto
    AND e.event_type = :told_by
    AND NOT EXISTS (SELECT 1 FROM event_parked p WHERE p.workspace = e.workspace AND p.seq = e.seq)
ORDER BY e.created_at, e.event_id LIMIT :limit;

-- name: event_unsealed_removals
SELECT payload FROM domain_events {{by_unsealed}}
WHERE workspace = :workspace AND seq IS NULL AND event_type = 'retention.removed'
ORDER BY created_at, event_id;

-- name: event_delete
DELETE FROM domain_events WHERE workspace = :workspace AND event_id = :event_id AND seq = :seq;

-- name: tombstone_insert
INSERT INTO event_tombstones (workspace, seq, digest, removed_at) VALUES (:workspace, :seq, :digest, :now)
{{or_keep:digest}};

-- name: tombstone_list
SELECT seq, digest FROM event_tombstones WHERE workspace = :workspace AND seq > :after ORDER BY seq LIMIT :limit;

-- name: tombstone_delete
DELETE FROM event_tombstones WHERE workspace = :workspace AND seq <= :upto;

-- name: chain_begin
INSERT INTO event_chain (workspace, seq, hash, base_seq, base_hash) VALUES (:workspace, 0, :hash, 0, :hash)
{{or_keep:seq}};

-- name: chain_get
SELECT seq, hash, base_seq, base_hash FROM event_chain WHERE workspace = :workspace;

-- name: chain_lock
SELECT seq, hash, base_seq, base_hash FROM event_chain WHERE workspace = :workspace {{for_update}};

-- name: chain_move
UPDATE event_chain SET seq = :seq, hash = :hash WHERE workspace = :workspace AND seq = :from;

-- name: chain_rebase
UPDATE event_chain SET base_seq = :seq, base_hash = :hash WHERE workspace = :workspace AND base_seq = :from;

-- name: sink_insert
INSERT INTO event_sinks ({{sink_columns}}, workspace)
VALUES (:sink, :kind, :place, 'active', '', :cursor_seq, '', 0, 0, :now, :workspace)
{{or_keep:epoch}};

-- name: sink_describe
UPDATE event_sinks SET kind = :kind, place = :place WHERE workspace = :workspace AND sink = :sink;

-- name: sink_get
SELECT {{sink_columns}} FROM event_sinks WHERE workspace = :workspace AND sink = :sink;

-- name: sink_lock
SELECT {{sink_columns}} FROM event_sinks WHERE workspace = :workspace AND sink = :sink {{for_update}};

-- name: sink_list
SELECT {{sink_columns}} FROM event_sinks WHERE workspace = :workspace ORDER BY sink;

-- name: sink_lowest
SELECT MIN(cursor_seq) FROM event_sinks WHERE workspace = :workspace AND state = 'active';

-- name: sink_take
UPDATE event_sinks SET owner = :owner, epoch = epoch + 1, lease_until = :lease_until
WHERE workspace = :workspace AND sink = :sink AND epoch = :epoch AND state = 'active';

-- name: sink_take_over
UPDATE event_sinks SET lease_until = 0
WHERE workspace = :workspace AND owner >= :first AND owner < :end AND owner <> :worker;

-- name: sink_lose
UPDATE event_sinks SET lease_until = 0 WHERE workspace = :workspace AND owner = :worker;

-- A cursor never goes back.
-- name: sink_settle
UPDATE event_sinks SET owner = '', lease_until = 0, cursor_seq = :cursor_seq
WHERE workspace = :workspace AND sink = :sink AND owner = :owner AND epoch = :epoch AND cursor_seq <= :cursor_seq;

-- name: sink_set
UPDATE event_sinks SET state = :state, reason = :reason, epoch = epoch + 1, owner = '', lease_until = 0
WHERE workspace = :workspace AND sink = :sink;

-- name: parked_list
SELECT seq, event_id, event_key, attempt, next_at FROM event_parked
WHERE workspace = :workspace AND sink = :sink AND state = 'parked'
ORDER BY seq;

-- name: parked_count
SELECT sink, COUNT(*), MIN(next_at) FROM event_parked
WHERE workspace = :workspace AND state = :state
GROUP BY sink ORDER BY sink;

-- name: parked_insert
INSERT INTO event_parked (workspace, sink, seq, event_id, event_key, state, attempt, next_at, error, updated_at)
VALUES (:workspace, :sink, :seq, :event_id, :event_key, :state, :attempt, :next_at, :error, :now);

-- name: parked_delete
DELETE FROM event_parked WHERE workspace = :workspace AND sink = :sink AND seq = :seq;

-- name: parked_dead
SELECT sink, seq, event_id, event_key, attempt, error, updated_at FROM event_parked
WHERE workspace = :workspace AND state = 'dead' AND {{conditions}}
ORDER BY sink, seq LIMIT :limit;

-- name: parked_redrive
UPDATE event_parked SET state = 'parked', attempt = 0, next_at = 0, updated_at = :now
WHERE workspace = :workspace AND sink = :sink AND state = 'dead';

-- name: parked_redrive_one
UPDATE event_parked SET state = 'parked', attempt = 0, next_at = 0, updated_at = :now
WHERE workspace = :workspace AND sink = :sink AND state = 'dead' AND event_id = :event_id;

-- name: outbox_fresh
SELECT e.seq, {{event_columns_of_e}}, c.context FROM domain_events e
LEFT JOIN commands c ON c.workspace = e.workspace AND c.command_id = e.command_id
WHERE e.workspace = :workspace AND e.seq > :after
ORDER BY e.seq LIMIT :limit;

-- name: outbox_these
SELECT e.seq, {{event_columns_of_e}}, c.context FROM domain_events e
LEFT JOIN commands c ON c.workspace = e.workspace AND c.command_id = e.command_id
WHERE e.workspace = :workspace AND e.event_id IN (:event_ids)
ORDER BY e.seq;

-- name: mark_list
SELECT mark, marked_at FROM event_marks WHERE workspace = :workspace AND sink = :sink
ORDER BY mark LIMIT :limit;

-- name: mark_delete
DELETE FROM event_marks WHERE workspace = :workspace AND sink = :sink AND mark = :mark;

-- name: mark_insert
INSERT INTO event_marks (workspace, sink, mark, marked_at) VALUES (:workspace, :sink, :mark, :marked_at)
{{or_keep:mark}};

-- name: mark_forget
DELETE FROM event_marks WHERE workspace = :workspace AND sink = :sink AND marked_at < :before;
