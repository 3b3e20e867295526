-- The one schema. Keys are binary and never null, times are microseconds UTC, payloads are JSON text.
-- A new database gets all of it; migrate.rs says what older ones lack.
-- Holes: {{key}} a bounded key, {{ws}} a workspace, {{text}} a payload, {{int}} 64 bits, {{end}} table options.

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
    PRIMARY KEY (workspace, run_id),
    CONSTRAINT run_lifecycle CHECK ({{arrows}}),
    CONSTRAINT run_over_iff_finished CHECK ((status IN ('ENQUEUED', 'PENDING')) = (finished_at IS NULL)),
    CONSTRAINT run_owned_iff_executing CHECK (
        parked + CASE WHEN worker = '' THEN 0 ELSE 1 END = CASE WHEN status = 'PENDING' THEN 1 ELSE 0 END)
) {{end}};

-- name: create_run_claim
CREATE INDEX run_claim ON run (workspace, queue, status, partition_key, sort_rank, ready_at, run_id)
    {{of_active}};

-- name: create_run_wake
CREATE INDEX run_wake ON run (workspace, wake_at) {{of_waking}};

-- name: create_run_list
CREATE INDEX run_list ON run (workspace, created_at, run_id);

-- name: create_run_parent
CREATE INDEX run_parent ON run (workspace, parent, created_at, run_id) {{of_children}};

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
    output {{text}},
    error {{text}},
    child_run_id {{key}} NOT NULL,
    attempt {{int}} NOT NULL,
    started_at {{int}} NOT NULL,
    completed_at {{int}} NOT NULL,
    next_at {{int}} NOT NULL,
    epoch {{int}} NOT NULL,
    PRIMARY KEY (workspace, run_id, function_id),
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

-- name: create_run_value
CREATE TABLE run_value (
    workspace {{ws}} NOT NULL,
    run_id {{key}} NOT NULL,
    value_key {{key}} NOT NULL,
    value {{text}} NOT NULL,
    updated_at {{int}} NOT NULL,
    PRIMARY KEY (workspace, run_id, value_key)
) {{end}};

-- name: create_stream_item
CREATE TABLE stream_item (
    workspace {{ws}} NOT NULL,
    run_id {{key}} NOT NULL,
    stream {{key}} NOT NULL,
    seq {{int}} NOT NULL,
    item {{text}},
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
    started_at {{int}} NOT NULL,
    seen_at {{int}} NOT NULL,
    PRIMARY KEY (workspace, worker)
) {{end}};
