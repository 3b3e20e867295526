-- The one schema. Keys are binary and never null, times are microseconds UTC, payloads are JSON text.
-- A database has all of it or none; migrate.rs refuses one of another version.
-- Holes: {{key}} a bounded key, {{ws}} a workspace, {{text}} a payload, {{int}} 64 bits, {{end}} table options,
-- {{small}} the same where rows are small and found by their key, {{one_of:column a b}} the column is a or b,
-- {{roomy}} an index whose rows change.
-- The keys of runs and records begin with the run: a comparison then ends with its first column (decision 26).

-- name: create_run
CREATE TABLE run (
    workspace {{ws}} NOT NULL,
    run_id {{key}} NOT NULL,
    workflow {{key}} NOT NULL,
    status {{ws}} NOT NULL,
    prev_status {{ws}} NOT NULL,
    input {{text}} NOT NULL,
    output {{text}},
    error {{text}},
    queue {{key}} NOT NULL,
    partition_key {{key}} NOT NULL,
    priority {{int}} NOT NULL,
    sort_rank {{int}} NOT NULL,
    dedupe_id {{key}} NOT NULL,
    app_version {{key}} NOT NULL,
    worker {{key}} NOT NULL,
    epoch {{int}} NOT NULL,
    attempts {{int}} NOT NULL,
    max_attempts {{int}} NOT NULL,
    created_at {{int}} NOT NULL,
    updated_at {{int}} NOT NULL,
    started_at {{int}},
    finished_at {{int}},
    ready_at {{int}} NOT NULL,
    wake_at {{int}} NOT NULL,
    parked {{int}} NOT NULL,
    waits {{text}} NOT NULL,
    timeout_us {{int}},
    deadline_at {{int}},
    forked_from {{key}} NOT NULL,
    parent {{key}} NOT NULL,
    detached {{int}} NOT NULL,
    generation {{int}} NOT NULL,
    seed {{int}} NOT NULL,
    inbox {{int}} NOT NULL,
    context {{text}},
    fork_request {{ws}},
    PRIMARY KEY (run_id, workspace) {{roomy}},
    CONSTRAINT run_lifecycle CHECK ({{arrows:run}}),
    CONSTRAINT run_over_iff_finished CHECK (({{one_of:status ENQUEUED PENDING}}) = (finished_at IS NULL)),
    CONSTRAINT run_owned_iff_executing CHECK (
        parked + CASE WHEN worker = '' THEN 0 ELSE 1 END = CASE WHEN status = 'PENDING' THEN 1 ELSE 0 END)
) {{end}};

-- name: create_run_claim
CREATE INDEX run_claim ON run (workspace, queue, status, partition_key, sort_rank, ready_at, run_id)
    {{roomy}} {{of_active}};

-- name: create_run_wake
CREATE INDEX run_wake ON run (workspace, wake_at) {{of_waking}};

-- name: create_run_list
CREATE INDEX run_list ON run (workspace, created_at, run_id) {{roomy}} {{of_listed}};

-- name: create_run_parent
CREATE INDEX run_parent ON run (workspace, parent, created_at, run_id) {{roomy}} {{of_children}};

-- name: create_step
CREATE TABLE step (
    workspace {{ws}} NOT NULL,
    run_id {{key}} NOT NULL,
    function_id {{int}} NOT NULL,
    seq {{int}} NOT NULL,
    name {{key}} NOT NULL,
    kind {{ws}} NOT NULL,
    state {{ws}} NOT NULL,
    input {{text}},
    input_digest {{ws}},
    output {{text}},
    error {{text}},
    child_run_id {{key}} NOT NULL,
    attempt {{int}} NOT NULL,
    started_at {{int}} NOT NULL,
    completed_at {{int}} NOT NULL,
    next_at {{int}} NOT NULL,
    epoch {{int}} NOT NULL,
    PRIMARY KEY (run_id, workspace, function_id),
    CONSTRAINT step_outcome CHECK (state <> 'done' OR output IS NULL OR error IS NULL)
) {{end}};

-- name: create_dedupe
CREATE TABLE dedupe (
    workspace {{ws}} NOT NULL,
    queue {{key}} NOT NULL,
    dedupe_id {{key}} NOT NULL,
    run_id {{key}} NOT NULL,
    first_at {{int}} NOT NULL,
    PRIMARY KEY (workspace, queue, dedupe_id)
) {{end}};

-- The run that the next call with a debounce key replaces or follows, and the latest calls.
-- name: create_debounce
CREATE TABLE debounce (
    workspace {{ws}} NOT NULL,
    workflow {{key}} NOT NULL,
    debounce_key {{key}} NOT NULL,
    run_id {{key}} NOT NULL,
    first_at {{int}} NOT NULL,
    calls {{text}} NOT NULL,
    PRIMARY KEY (workspace, workflow, debounce_key)
) {{end}};

-- name: create_debounce_run
CREATE INDEX debounce_run ON debounce (workspace, run_id);

-- name: create_inbox_signal
CREATE TABLE inbox_signal (
    workspace {{ws}} NOT NULL,
    run_id {{key}} NOT NULL,
    seq {{int}} NOT NULL,
    signal_id {{key}} NOT NULL,
    name {{key}} NOT NULL,
    payload {{text}} NOT NULL,
    sent_at {{int}} NOT NULL,
    consumed_by {{int}} NOT NULL,
    PRIMARY KEY (workspace, run_id, seq),
    CONSTRAINT inbox_signal_once UNIQUE (workspace, run_id, signal_id)
) {{end}};

-- Every version that a fork of the run may need: those of its generation, and the last of the one before.
-- name: create_run_value
CREATE TABLE run_value (
    workspace {{ws}} NOT NULL,
    run_id {{key}} NOT NULL,
    value_key {{key}} NOT NULL,
    version {{int}} NOT NULL,
    value {{text}} NOT NULL,
    generation {{int}} NOT NULL,
    function_id {{int}} NOT NULL,
    updated_at {{int}} NOT NULL,
    PRIMARY KEY (workspace, run_id, value_key, version)
) {{end}};

-- name: create_stream_item
CREATE TABLE stream_item (
    workspace {{ws}} NOT NULL,
    run_id {{key}} NOT NULL,
    stream {{key}} NOT NULL,
    seq {{int}} NOT NULL,
    item {{text}},
    generation {{int}} NOT NULL,
    function_id {{int}} NOT NULL,
    PRIMARY KEY (workspace, run_id, stream, seq)
) {{end}};

-- name: create_queue
CREATE TABLE queue (
    workspace {{ws}} NOT NULL,
    name {{key}} NOT NULL,
    concurrency {{int}},
    worker_concurrency {{int}},
    rate_limit {{int}},
    rate_period_us {{int}},
    priorities {{int}} NOT NULL,
    partitioned {{int}} NOT NULL,
    paused {{int}} NOT NULL,
    definition {{text}},
    updated_at {{int}} NOT NULL,
    PRIMARY KEY (workspace, name)
) {{end}};

-- name: create_queue_start
CREATE TABLE queue_start (
    workspace {{ws}} NOT NULL,
    queue {{key}} NOT NULL,
    partition_key {{key}} NOT NULL,
    started_at {{int}} NOT NULL,
    token {{key}} NOT NULL,
    PRIMARY KEY (workspace, queue, partition_key, started_at, token)
) {{end}};

-- name: create_slot
CREATE TABLE slot (
    workspace {{ws}} NOT NULL,
    run_id {{key}} NOT NULL,
    function_id {{int}} NOT NULL,
    queue {{key}} NOT NULL,
    partition_key {{key}} NOT NULL,
    worker {{key}} NOT NULL,
    epoch {{int}} NOT NULL,
    lease_until {{int}} NOT NULL,
    PRIMARY KEY (workspace, run_id, function_id)
) {{end}};

-- name: create_slot_queue
CREATE INDEX slot_queue ON slot (workspace, queue, partition_key, lease_until);

-- name: create_worker
CREATE TABLE worker (
    workspace {{ws}} NOT NULL,
    worker {{key}} NOT NULL,
    app_version {{key}} NOT NULL,
    workflows {{text}} NOT NULL,
    lease_us {{int}} NOT NULL,
    started_at {{int}} NOT NULL,
    seen_at {{int}} NOT NULL,
    superseded_by {{key}} NOT NULL,
    lost {{int}} NOT NULL,
    PRIMARY KEY (workspace, worker)
) {{end}};

-- Commands, by the names of the domain. Keys are unique when there are any; a command outlives its run.
-- name: create_commands
CREATE TABLE commands (
    workspace {{ws}} NOT NULL,
    command_id {{key}} NOT NULL,
    command_type {{key}} NOT NULL,
    requested_by {{key}} NOT NULL,
    ingress {{ws}} NOT NULL,
    payload {{text}} NOT NULL,
    context {{text}} NOT NULL,
    status {{ws}} NOT NULL,
    prev_status {{ws}} NOT NULL,
    cancellation_mode {{ws}} NOT NULL,
    idempotency_key {{key}},
    workflow_id {{key}} NOT NULL,
    result {{text}},
    error {{text}},
    collapsed {{int}} NOT NULL,
    created_at {{int}} NOT NULL,
    updated_at {{int}} NOT NULL,
    completed_at {{int}},
    expires_at {{int}},
    due_at {{int}} NOT NULL,
    events {{int}} NOT NULL,
    nonce {{int}} NOT NULL,
    launch {{text}},
    PRIMARY KEY (workspace, command_id),
    CONSTRAINT commands_key UNIQUE (workspace, idempotency_key),
    CONSTRAINT commands_workflow UNIQUE (workspace, workflow_id),
    CONSTRAINT commands_lifecycle CHECK ({{arrows:command}}),
    CONSTRAINT commands_over_iff_completed CHECK (
        ({{one_of:status succeeded failed cancelled expired compensated}}) = (completed_at IS NOT NULL))
) {{end}};

-- name: create_commands_due
CREATE INDEX commands_due ON commands (workspace, due_at) {{of_due}};

-- name: create_command_dependencies
CREATE TABLE command_dependencies (
    workspace {{ws}} NOT NULL,
    child_command_id {{key}} NOT NULL,
    parent_command_id {{key}} NOT NULL,
    required_status {{ws}} NOT NULL,
    propagate_cancellation {{int}} NOT NULL,
    PRIMARY KEY (workspace, child_command_id, parent_command_id)
) {{small}};

-- name: create_command_dependents
CREATE INDEX command_dependents ON command_dependencies (workspace, parent_command_id);

-- name: create_command_duplicates
CREATE TABLE command_duplicates (
    workspace {{ws}} NOT NULL,
    command_id {{key}} NOT NULL,
    nonce {{int}} NOT NULL,
    requested_by {{key}} NOT NULL,
    ingress {{ws}} NOT NULL,
    created_at {{int}} NOT NULL,
    PRIMARY KEY (workspace, command_id, nonce)
) {{small}};

-- name: create_domain_events
CREATE TABLE domain_events (
    workspace {{ws}} NOT NULL,
    event_id {{key}} NOT NULL,
    command_id {{key}} NOT NULL,
    purpose {{ws}} NOT NULL,
    event_type {{ws}} NOT NULL,
    payload {{text}} NOT NULL,
    actor {{key}} NOT NULL,
    trace_id {{key}} NOT NULL,
    created_at {{int}} NOT NULL,
    seq {{int}},
    hash {{ws}},
    PRIMARY KEY (workspace, event_id),
    CONSTRAINT domain_events_purpose CHECK ({{one_of:purpose event audit agent_step}})
) {{small}};

-- name: create_domain_events_list
CREATE INDEX domain_events_list ON domain_events (workspace, created_at, event_id);

-- name: create_triggers
CREATE TABLE triggers (
    workspace {{ws}} NOT NULL,
    trigger_id {{key}} NOT NULL,
    kind {{ws}} NOT NULL,
    spec {{text}} NOT NULL,
    revision {{int}} NOT NULL,
    source {{key}} NOT NULL,
    state {{ws}} NOT NULL,
    reason {{text}} NOT NULL,
    absent_from {{int}} NOT NULL,
    absent_until {{int}} NOT NULL,
    cursor_at {{int}} NOT NULL,
    gap {{text}} NOT NULL,
    due_at {{int}} NOT NULL,
    version {{int}} NOT NULL,
    created_at {{int}} NOT NULL,
    updated_at {{int}} NOT NULL,
    PRIMARY KEY (workspace, trigger_id),
    CONSTRAINT triggers_state CHECK ({{one_of:state active paused disabled removed}}),
    CONSTRAINT triggers_due_iff_active CHECK (state = 'active' OR due_at = {{never}})
) {{end}};

-- name: create_triggers_due
CREATE INDEX triggers_due ON triggers (workspace, due_at) {{of_due}};

-- name: create_triggers_kind
CREATE INDEX triggers_kind ON triggers (workspace, kind, trigger_id);

-- name: create_trigger_slots
CREATE TABLE trigger_slots (
    workspace {{ws}} NOT NULL,
    trigger_id {{key}} NOT NULL,
    nominal_at {{int}} NOT NULL,
    status {{ws}} NOT NULL,
    prev_status {{ws}} NOT NULL,
    reason {{text}} NOT NULL,
    lag_us {{int}} NOT NULL,
    command_id {{key}} NOT NULL,
    into_at {{int}},
    window_from {{int}},
    revision {{int}} NOT NULL,
    decided_at {{int}} NOT NULL,
    PRIMARY KEY (workspace, trigger_id, nominal_at),
    CONSTRAINT trigger_slots_lifecycle CHECK ({{arrows:slot}})
) {{small}};

-- name: create_activity_runs
CREATE TABLE activity_runs (
    workspace {{ws}} NOT NULL,
    run_id {{key}} NOT NULL,
    activity_id {{key}} NOT NULL,
    definition_version {{int}} NOT NULL,
    workflow_id {{key}} NOT NULL,
    trigger_type {{ws}} NOT NULL,
    trigger_key {{key}} NOT NULL,
    context_snapshot {{text}} NOT NULL,
    tasks_spawned {{int}} NOT NULL,
    started_at {{int}} NOT NULL,
    scheduled_for {{int}},
    fired_at {{int}},
    window_start {{int}},
    window_end {{int}},
    status {{ws}},
    error {{text}},
    finished_at {{int}},
    PRIMARY KEY (workspace, run_id),
    CONSTRAINT activity_runs_workflow UNIQUE (workspace, workflow_id)
) {{end}};

-- name: create_activity_runs_list
CREATE INDEX activity_runs_list ON activity_runs (workspace, activity_id, started_at, run_id);

-- name: create_task_instances
CREATE TABLE task_instances (
    workspace {{ws}} NOT NULL,
    id {{key}} NOT NULL,
    run_id {{key}} NOT NULL,
    task_type {{key}} NOT NULL,
    idx {{int}} NOT NULL,
    params {{text}} NOT NULL,
    created_at {{int}} NOT NULL,
    PRIMARY KEY (workspace, id)
) {{small}};

-- name: create_task_instances_run
CREATE INDEX task_instances_run ON task_instances (workspace, run_id, id);
