-- Triggers, their slots, and activities.

-- name: trigger_insert
INSERT INTO triggers ({{trigger_columns}}, workspace)
VALUES (:trigger_id, :kind, :spec, :revision, :source, :state, :reason, :absent_from, :absent_until, :cursor_at,
    :gap, :due_at, 1, :created_at, :updated_at, :workspace)
{{or_keep:trigger_id}};

-- name: trigger_update
UPDATE triggers SET kind = :kind, spec = :spec, revision = :revision, source = :source, state = :state,
    reason = :reason, absent_from = :absent_from, absent_until = :absent_until, cursor_at = :cursor_at, gap = :gap,
    due_at = :due_at, version = version + 1, updated_at = :updated_at
WHERE workspace = :workspace AND trigger_id = :trigger_id AND version = :version;

-- name: trigger_advance
UPDATE triggers SET cursor_at = :cursor_at, gap = :gap, due_at = :due_at, version = version + 1,
    updated_at = :now
WHERE workspace = :workspace AND trigger_id = :trigger_id AND version = :version;

-- name: trigger_get
SELECT {{trigger_columns}} FROM triggers WHERE workspace = :workspace AND trigger_id = :trigger_id;

-- name: trigger_list
SELECT {{trigger_columns}} FROM triggers WHERE workspace = :workspace {{conditions}} ORDER BY trigger_id;

-- name: trigger_due
SELECT {{trigger_columns}} FROM triggers
WHERE workspace = :workspace AND due_at <= :now {{and_due}} {{conditions}}
ORDER BY due_at, trigger_id LIMIT :limit;

-- name: slot_write
INSERT INTO trigger_slots ({{slot_columns}}, workspace, trigger_id, prev_status)
VALUES (:nominal_at, :status, :reason, :lag_us, :command_id, :into_at, :window_from, :revision, :decided_at,
    :workspace, :trigger_id, '')
{{or_keep:nominal_at}};

-- name: slot_move
UPDATE trigger_slots SET prev_status = status, status = :status, reason = :reason, command_id = :command_id,
    decided_at = :decided_at
WHERE workspace = :workspace AND trigger_id = :trigger_id AND nominal_at = :nominal_at AND status = :from;

-- name: slot_status
SELECT status FROM trigger_slots
WHERE workspace = :workspace AND trigger_id = :trigger_id AND nominal_at = :nominal_at {{for_update}};

-- Of the last slots only: one that is still at work after so many others have begun holds nobody up. What is filled in by
-- hand does not, either.
-- name: slot_active
SELECT s.command_id FROM
    (SELECT command_id, nominal_at FROM trigger_slots
    WHERE workspace = :workspace AND trigger_id = :trigger_id AND nominal_at < :nominal_at
        AND status IN ('fired', 'collapsed')
    ORDER BY nominal_at DESC LIMIT :limit) s
JOIN commands c ON c.workspace = :workspace AND c.command_id = s.command_id
LEFT JOIN run r ON r.workspace = :workspace AND r.run_id = c.workflow_id
WHERE c.completed_at IS NULL AND COALESCE(r.priority, 0) < :background
ORDER BY s.nominal_at DESC;

-- name: slot_list
SELECT {{slot_columns}} FROM trigger_slots
WHERE workspace = :workspace AND trigger_id = :trigger_id AND nominal_at >= :from AND nominal_at <= :until
ORDER BY nominal_at LIMIT :limit;

-- name: slot_list_latest
SELECT {{slot_columns}} FROM trigger_slots
WHERE workspace = :workspace AND trigger_id = :trigger_id AND nominal_at >= :from AND nominal_at <= :until
ORDER BY nominal_at DESC LIMIT :limit;

-- name: activity_insert
INSERT INTO activity_runs (workspace, run_id, activity_id, definition_version, workflow_id, trigger_type,
    trigger_key, context_snapshot, tasks_spawned, scheduled_for, fired_at, window_start, window_end, status, error,
    started_at, finished_at)
VALUES (:workspace, :run_id, :activity_id, :definition_version, :workflow_id, :trigger_type, :trigger_key,
    :context_snapshot, :tasks_spawned, :scheduled_for,
    COALESCE((SELECT c.created_at FROM commands c WHERE c.workspace = :workspace AND c.workflow_id = :workflow_id),
        :fired_at),
    :window_start, :window_end, :status, :error, :started_at, :finished_at)
{{or_keep:run_id}};

-- name: activity_list
SELECT run_id, activity_id, definition_version, workflow_id, trigger_type, trigger_key, context_snapshot,
    tasks_spawned, scheduled_for, COALESCE(fired_at, started_at), window_start, window_end,
    COALESCE(status, 'succeeded'), error, started_at, COALESCE(finished_at, started_at)
FROM activity_runs WHERE workspace = :workspace AND activity_id = :activity_id
ORDER BY started_at, run_id LIMIT :limit;

-- name: task_insert
INSERT INTO task_instances (workspace, id, run_id, task_type, idx, params, created_at)
VALUES (:workspace, :id, :run_id, :task_type, :idx, :params, :created_at)
{{or_keep:id}};

-- name: task_list
SELECT t.id, t.run_id, t.task_type, t.idx, t.params, r.status, t.created_at FROM task_instances t
LEFT JOIN run r ON r.workspace = t.workspace AND r.run_id = t.id
WHERE t.workspace = :workspace AND t.run_id = :run_id ORDER BY t.id;
