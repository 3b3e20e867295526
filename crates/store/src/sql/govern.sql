-- The ledger of effects and calls, questions to people, and what all workers share.

-- name: effect_insert
INSERT INTO domain_effects (workspace, {{effect_columns}}, prev_status)
VALUES (:workspace, :effect_id, :command_id, :run_id, :ordinal, :effect_type, :payload, :idempotency_key, :status,
    NULL, NULL, :compensates, :compensation, NULL, :now, :now, NULL, :prev_status)
{{or_keep:domain_effect_id}};

-- name: effect_get
SELECT {{effect_columns}} FROM domain_effects WHERE workspace = :workspace AND domain_effect_id = :effect_id;

-- name: effect_clash
SELECT domain_effect_id FROM domain_effects
WHERE workspace = :workspace AND idempotency_key = :idempotency_key AND command_id = :command_id
    AND effect_type = :effect_type AND effect_payload <> :payload AND domain_effect_id <> :effect_id
    AND COALESCE(compensates_effect_id, '') = :compensates
LIMIT 1;

-- name: effect_same
SELECT {{effect_columns}} FROM domain_effects
WHERE workspace = :workspace AND idempotency_key = :idempotency_key AND effect_type = :effect_type
    AND domain_effect_id <> :effect_id AND status IN ('executing', 'unknown', 'succeeded') AND compensated_at IS NULL
    AND COALESCE(compensates_effect_id, '') = :compensates
ORDER BY domain_effect_id LIMIT 1;

-- name: effect_last
SELECT MAX(ordinal) FROM domain_effects WHERE workspace = :workspace AND command_id = :command_id;

-- `prev_status = status` stands first because MySQL evaluates left to right.
-- name: effect_move
UPDATE domain_effects SET prev_status = status, status = :to, result = :result, error = :error, updated_at = :now,
    completed_at = :completed_at
WHERE workspace = :workspace AND domain_effect_id = :effect_id AND status = :from;

-- name: effect_undone
UPDATE domain_effects SET compensated_at = :now, updated_at = :now
WHERE workspace = :workspace AND domain_effect_id = :effect_id AND compensated_at IS NULL;

-- What was begun and not ended may have been done, so it is to be undone as well.
-- name: effect_to_undo
SELECT domain_effect_id FROM domain_effects
WHERE workspace = :workspace AND command_id = :command_id AND status IN ('succeeded', 'executing', 'unknown')
    AND declared_compensation IS NOT NULL AND compensates_effect_id IS NULL AND compensated_at IS NULL
LIMIT 1;

-- What undoes an effect may have been done as soon as it was begun.
-- name: effect_undone_any
SELECT domain_effect_id FROM domain_effects
WHERE workspace = :workspace AND command_id = :command_id
    AND (compensated_at IS NOT NULL
        OR compensates_effect_id IS NOT NULL AND status IN ('succeeded', 'executing', 'unknown'))
LIMIT 1;

-- A worker that let go of a stopped run is still at it: nobody else settles what it has begun.
-- name: effect_busy
UPDATE domain_effects SET updated_at = :now
WHERE workspace = :workspace AND command_id = :command_id AND executed_by_run_id = :run_id AND status = 'executing';

-- name: effect_list
SELECT {{effect_columns}} FROM domain_effects
WHERE workspace = :workspace AND {{conditions}}
ORDER BY command_id, ordinal, domain_effect_id LIMIT :limit;

-- name: effect_list_last
SELECT {{effect_columns}} FROM domain_effects
WHERE workspace = :workspace AND {{conditions}}
ORDER BY command_id DESC, ordinal DESC, domain_effect_id DESC LIMIT :limit;

-- name: invocation_insert
INSERT INTO connector_invocations (workspace, {{invocation_columns}})
VALUES (:workspace, :invocation_id, :command_id, :run_id, :connector, :agent, :intended, :actual, :inputs, :outputs,
    :side_effect, :idempotency_key, :verification, :error, :latency_us, :cost_units, :now)
{{or_keep:invocation_id}};

-- name: invocation_list
SELECT {{invocation_columns}} FROM connector_invocations
WHERE workspace = :workspace AND {{conditions}}
ORDER BY created_at, invocation_id LIMIT :limit;

-- name: approval_insert
INSERT INTO approvals (workspace, {{approval_columns}}, prev_status, due_at)
VALUES (:workspace, :approval_id, :approval_type, :action, :reason, :payload, :request_hash, :requested_by, :approvers,
    :among, :expires_at, :escalate_at, :command_id, :run_id, 'pending', :now, NULL, '', :due_at)
{{or_keep:approval_id}};

-- name: approval_get
SELECT {{approval_columns}} FROM approvals WHERE workspace = :workspace AND approval_id = :approval_id;

-- name: approval_lock
SELECT approval_id FROM approvals WHERE workspace = :workspace AND approval_id = :approval_id {{for_update}};

-- name: approval_pending
SELECT {{approval_columns}} FROM approvals
WHERE workspace = :workspace AND command_id = :command_id AND status = 'pending'
ORDER BY approval_id;

-- name: approval_move
UPDATE approvals SET prev_status = status, status = :to, due_at = {{never}}, decided_at = :now
WHERE workspace = :workspace AND approval_id = :approval_id AND status = :from;

-- name: approval_wait
UPDATE approvals SET due_at = :due_at
WHERE workspace = :workspace AND approval_id = :approval_id AND status = 'pending';

-- name: approval_due
SELECT approval_id FROM approvals
WHERE workspace = :workspace AND due_at <= :now {{and_due}}
ORDER BY due_at, approval_id LIMIT :limit;

-- name: approval_list
SELECT {{approval_columns}} FROM approvals
WHERE workspace = :workspace AND {{conditions}}
ORDER BY approval_id LIMIT :limit;

-- name: vote_insert
INSERT INTO approval_votes (workspace, approval_id, approver, vote, reason, created_at)
VALUES (:workspace, :approval_id, :approver, :vote, :reason, :now)
{{or_keep:approver}};

-- name: vote_update
UPDATE approval_votes SET vote = :vote, reason = :reason, created_at = :now
WHERE workspace = :workspace AND approval_id = :approval_id AND approver = :approver;

-- name: vote_list
SELECT approver, vote, reason, created_at FROM approval_votes
WHERE workspace = :workspace AND approval_id = :approval_id
ORDER BY created_at, approver;

-- name: meter_lock
SELECT amount, moment FROM meters WHERE workspace = :workspace AND meter = :meter {{for_update}};

-- name: meter_insert
INSERT INTO meters (workspace, meter, amount, moment) VALUES (:workspace, :meter, 0, 0)
{{or_keep:meter}};

-- A request that took something, so that it is known when it is sent again.
-- name: meter_mark
INSERT INTO meters (workspace, meter, amount, moment, past_at) VALUES (:workspace, :meter, 0, :at, :past_at)
{{or_keep:meter}};

-- A budget is past its time; anything else without an amount is as good as new. What was never given a time stays.
-- name: meter_past
SELECT meter FROM meters
WHERE workspace = :workspace AND past_at <= :now AND (amount = 0 OR meter >= :first AND meter < :last)
ORDER BY past_at, meter LIMIT :limit;

-- name: meter_list
SELECT meter, amount, moment FROM meters
WHERE workspace = :workspace AND meter >= :first AND meter < :last AND amount <> 0 AND {{conditions}}
ORDER BY meter LIMIT :limit;

-- Somebody may have taken from it since it was found.
-- name: meter_remove
DELETE FROM meters
WHERE workspace = :workspace AND meter = :meter AND past_at <= :now
    AND (amount = 0 OR meter >= :first AND meter < :last);

-- name: meter_update
UPDATE meters SET amount = :amount, moment = :at, past_at = :past_at WHERE workspace = :workspace AND meter = :meter;
