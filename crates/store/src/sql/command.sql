-- Commands, what they wait for, who else wanted them, and events.

-- name: command_insert
INSERT INTO commands ({{command_columns}}, workspace, prev_status, due_at, events, nonce, launch)
VALUES (:command_id, :command_type, :requested_by, :ingress, :payload, :context, :status, :cancellation_mode,
    :idempotency_key, :workflow_id, NULL, :error, 0, :now, :now, :completed_at, :expires_at,
    :workspace, :prev_status, :due_at, :events, :nonce, :launch)
{{or_keep:command_id}};

-- name: command_delete
DELETE FROM commands WHERE workspace = :workspace AND command_id = :command_id;

-- name: command_get
SELECT {{command_columns}} FROM commands WHERE workspace = :workspace AND command_id = :command_id;

-- name: command_by_key
SELECT {{command_columns}} FROM commands WHERE workspace = :workspace AND idempotency_key = :idempotency_key;

-- name: command_by_run
SELECT {{command_columns}} FROM commands WHERE workspace = :workspace AND workflow_id = :workflow_id;

-- name: command_lock
SELECT status, workflow_id, context, events, nonce, launch, due_at FROM commands
WHERE workspace = :workspace AND command_id = :command_id {{for_update}};

-- name: command_peek
SELECT status, workflow_id, events FROM commands WHERE workspace = :workspace AND command_id = :command_id;

-- name: command_supply
UPDATE commands SET payload = :payload
WHERE workspace = :workspace AND command_id = :command_id AND status = 'waiting_for_input';

-- `prev_status = status` stands first because MySQL evaluates left to right.
-- name: command_move
UPDATE commands SET prev_status = status, status = :to, result = :result, error = :error, updated_at = :now,
    completed_at = :completed_at, due_at = :due_at, events = events + 1
WHERE workspace = :workspace AND command_id = :command_id AND status = :from;

-- name: command_hold
UPDATE commands SET due_at = :due_at
WHERE workspace = :workspace AND command_id = :command_id AND status = 'cancelling';

-- name: command_collapse
UPDATE commands SET collapsed = collapsed + 1 WHERE workspace = :workspace AND command_id = :command_id;

-- name: command_list
SELECT {{command_columns}} FROM commands
WHERE workspace = :workspace AND {{conditions}}
ORDER BY command_id DESC LIMIT :limit;

-- name: command_due
SELECT command_id FROM commands
WHERE workspace = :workspace AND due_at <= :now {{and_due}}
ORDER BY due_at, command_id LIMIT :limit;

-- name: duplicate_insert
INSERT INTO command_duplicates (workspace, command_id, nonce, requested_by, ingress, created_at)
VALUES (:workspace, :command_id, :nonce, :requested_by, :ingress, :now)
{{or_keep:nonce}};

-- name: duplicate_list
SELECT requested_by, ingress, created_at FROM command_duplicates
WHERE workspace = :workspace AND command_id = :command_id
ORDER BY created_at, nonce LIMIT :limit;

-- name: dependency_insert
INSERT INTO command_dependencies (workspace, child_command_id, parent_command_id, required_status,
    propagate_cancellation)
VALUES (:workspace, :command_id, :parent, :required_status, :propagate)
{{or_keep:parent_command_id}};

-- name: dependency_parents
SELECT d.parent_command_id, d.required_status, d.propagate_cancellation, c.status
FROM command_dependencies d
JOIN commands c ON c.workspace = d.workspace AND c.command_id = d.parent_command_id
WHERE d.workspace = :workspace AND d.child_command_id = :command_id
ORDER BY d.parent_command_id;

-- name: dependency_children
SELECT d.child_command_id FROM command_dependencies d
JOIN commands c ON c.workspace = d.workspace AND c.command_id = d.child_command_id
WHERE d.workspace = :workspace AND d.parent_command_id = :command_id AND c.status IN ('validated', 'approved')
ORDER BY d.child_command_id;

-- name: event_insert
INSERT INTO domain_events (workspace, event_id, command_id, purpose, event_type, payload, actor, trace_id, created_at)
VALUES (:workspace, :event_id, :command_id, :purpose, :event_type, :payload, :actor, :trace_id, :now)
{{or_keep:event_id}};

-- name: event_said
SELECT actor, payload FROM domain_events WHERE workspace = :workspace AND event_id = :event_id;

-- name: event_by
SELECT event_id FROM domain_events
WHERE workspace = :workspace AND event_id >= :first AND event_id < :last AND actor = :actor
LIMIT 1;

-- The last that people said of an effect that nobody knew about. The ids of such events differ in their moments.
-- name: event_resolved
SELECT event_id, actor, payload FROM domain_events
WHERE workspace = :workspace AND event_id >= :first AND event_id <= :last
ORDER BY event_id DESC LIMIT 1;

-- The first events of a command, which differ in little.
-- name: event_path_2
INSERT {{or_fail}} INTO domain_events (workspace, event_id, command_id, purpose, event_type, payload, actor, trace_id, created_at)
VALUES (:workspace, :event_id_0, :command_id, 'event', :event_type_0, :payload, :actor, :trace_id, :now),
    (:workspace, :event_id_1, :command_id, 'event', :event_type_1, '{}', :actor, :trace_id, :now)
{{or_keep:event_id}};

-- name: event_path_3
INSERT {{or_fail}} INTO domain_events (workspace, event_id, command_id, purpose, event_type, payload, actor, trace_id, created_at)
VALUES (:workspace, :event_id_0, :command_id, 'event', :event_type_0, :payload, :actor, :trace_id, :now),
    (:workspace, :event_id_1, :command_id, 'event', :event_type_1, '{}', :actor, :trace_id, :now),
    (:workspace, :event_id_2, :command_id, 'event', :event_type_2, '{}', :actor, :trace_id, :now)
{{or_keep:event_id}};

-- name: event_path_4
INSERT {{or_fail}} INTO domain_events (workspace, event_id, command_id, purpose, event_type, payload, actor, trace_id, created_at)
VALUES (:workspace, :event_id_0, :command_id, 'event', :event_type_0, :payload, :actor, :trace_id, :now),
    (:workspace, :event_id_1, :command_id, 'event', :event_type_1, '{}', :actor, :trace_id, :now),
    (:workspace, :event_id_2, :command_id, 'event', :event_type_2, '{}', :actor, :trace_id, :now),
    (:workspace, :event_id_3, :command_id, 'event', :event_type_3, '{}', :actor, :trace_id, :now)
{{or_keep:event_id}};

-- name: event_list
SELECT {{event_columns}} FROM domain_events
WHERE workspace = :workspace AND {{conditions}}
ORDER BY created_at, event_id LIMIT :limit;
