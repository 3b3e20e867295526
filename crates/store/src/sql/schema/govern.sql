-- The schema of governance: effects, calls, questions to people, what all workers share. See schema.sql for the holes.

-- The ledger of effects, by the names of the domain.
-- name: create_domain_effects
CREATE TABLE domain_effects (
    workspace {{ws}} NOT NULL,
    domain_effect_id {{key}} NOT NULL,
    command_id {{key}} NOT NULL,
    executed_by_run_id {{key}} NOT NULL,
    ordinal {{int}} NOT NULL,
    effect_type {{key}} NOT NULL,
    effect_payload {{text}} NOT NULL,
    idempotency_key {{key}} NOT NULL,
    status {{ws}} NOT NULL,
    prev_status {{ws}} NOT NULL,
    result {{text}},
    error {{text}},
    compensates_effect_id {{key}},
    declared_compensation {{key}},
    compensated_at {{int}},
    created_at {{int}} NOT NULL,
    updated_at {{int}} NOT NULL,
    completed_at {{int}},
    PRIMARY KEY (workspace, domain_effect_id),
    CONSTRAINT domain_effects_lifecycle CHECK ({{arrows:effect}})
) {{end}};

-- name: create_domain_effects_command
CREATE INDEX domain_effects_command ON domain_effects (workspace, command_id, ordinal);

-- name: create_domain_effects_key
CREATE INDEX domain_effects_key ON domain_effects (workspace, idempotency_key);

-- name: create_domain_effects_unknown
CREATE INDEX domain_effects_unknown ON domain_effects (workspace, status, updated_at);

-- Every call of a connector: what was meant against what was done.
-- name: create_connector_invocations
CREATE TABLE connector_invocations (
    workspace {{ws}} NOT NULL,
    invocation_id {{key}} NOT NULL,
    command_id {{key}} NOT NULL,
    run_id {{key}} NOT NULL,
    connector_name {{key}} NOT NULL,
    agent_name {{key}} NOT NULL,
    intended_action {{text}} NOT NULL,
    actual_action {{text}} NOT NULL,
    input_digest {{key}} NOT NULL,
    output_summary {{text}} NOT NULL,
    side_effect {{int}} NOT NULL,
    idempotency_key {{key}} NOT NULL,
    verification_status {{ws}} NOT NULL,
    error {{text}},
    latency_us {{int}} NOT NULL,
    cost_units {{int}},
    created_at {{int}} NOT NULL,
    PRIMARY KEY (workspace, invocation_id),
    CONSTRAINT connector_invocations_status CHECK (
        {{one_of:verification_status verified contradicted failed blocked}})
) {{end}};

-- name: create_connector_invocations_list
CREATE INDEX connector_invocations_list ON connector_invocations (workspace, command_id, created_at);

-- name: create_approvals
CREATE TABLE approvals (
    workspace {{ws}} NOT NULL,
    approval_id {{key}} NOT NULL,
    command_id {{key}} NOT NULL,
    run_id {{key}} NOT NULL,
    approval_type {{key}} NOT NULL,
    action {{text}} NOT NULL,
    reason {{text}} NOT NULL,
    request_payload {{text}} NOT NULL,
    request_hash {{key}} NOT NULL,
    requested_by {{key}} NOT NULL,
    approvers {{int}} NOT NULL,
    among {{text}} NOT NULL,
    status {{ws}} NOT NULL,
    prev_status {{ws}} NOT NULL,
    expires_at {{int}} NOT NULL,
    escalate_at {{int}},
    due_at {{int}} NOT NULL,
    created_at {{int}} NOT NULL,
    decided_at {{int}},
    PRIMARY KEY (workspace, approval_id),
    CONSTRAINT approvals_lifecycle CHECK ({{arrows:approval}})
) {{end}};

-- name: create_approvals_due
CREATE INDEX approvals_due ON approvals (workspace, due_at) {{of_due}};

-- name: create_approvals_command
CREATE INDEX approvals_command ON approvals (workspace, command_id);

-- name: create_approvals_list
CREATE INDEX approvals_list ON approvals (workspace, status, approval_id);

-- name: create_approval_votes
CREATE TABLE approval_votes (
    workspace {{ws}} NOT NULL,
    approval_id {{key}} NOT NULL,
    approver {{key}} NOT NULL,
    vote {{ws}} NOT NULL,
    reason {{text}} NOT NULL,
    created_at {{int}} NOT NULL,
    PRIMARY KEY (workspace, approval_id, approver)
) {{small}};

-- What all workers together may spend: rates, budgets, breakers.
-- name: create_meters
CREATE TABLE meters (
    workspace {{ws}} NOT NULL,
    meter {{key}} NOT NULL,
    amount {{int}} NOT NULL,
    moment {{int}} NOT NULL,
    past_at {{int}},
    PRIMARY KEY (workspace, meter)
) {{small}};

-- Which meters may be removed.
-- name: create_meters_past
CREATE INDEX meters_past ON meters (workspace, past_at);
