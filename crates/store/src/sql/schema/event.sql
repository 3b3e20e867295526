-- The schema of the event chain and the outbox. See schema.sql for the holes.

-- Events get their number and their link after their commit: see apply/publish.rs.
-- name: create_domain_events_seq
CREATE UNIQUE INDEX domain_events_seq ON domain_events (workspace, seq) {{of_sealed}};

-- name: create_domain_events_unsealed
CREATE INDEX domain_events_unsealed ON domain_events ({{unsealed}}) {{of_unsealed}};

-- name: create_event_chain
CREATE TABLE event_chain (
    workspace {{ws}} NOT NULL,
    seq {{int}} NOT NULL,
    hash {{ws}} NOT NULL,
    base_seq {{int}} NOT NULL,
    base_hash {{ws}} NOT NULL,
    PRIMARY KEY (workspace)
) {{small}};

-- What is left of an event that retention removed.
-- name: create_event_tombstones
CREATE TABLE event_tombstones (
    workspace {{ws}} NOT NULL,
    seq {{int}} NOT NULL,
    digest {{ws}} NOT NULL,
    removed_at {{int}} NOT NULL,
    PRIMARY KEY (workspace, seq)
) {{small}};

-- name: create_event_sinks
CREATE TABLE event_sinks (
    workspace {{ws}} NOT NULL,
    sink {{key}} NOT NULL,
    kind {{ws}} NOT NULL,
    place {{text}} NOT NULL,
    state {{ws}} NOT NULL,
    reason {{text}} NOT NULL,
    cursor_seq {{int}} NOT NULL,
    owner {{key}} NOT NULL,
    epoch {{int}} NOT NULL,
    lease_until {{int}} NOT NULL,
    created_at {{int}} NOT NULL,
    PRIMARY KEY (workspace, sink),
    CONSTRAINT event_sinks_state CHECK ({{one_of:state active disabled}})
) {{end}};

-- name: create_event_parked
CREATE TABLE event_parked (
    workspace {{ws}} NOT NULL,
    sink {{key}} NOT NULL,
    seq {{int}} NOT NULL,
    event_id {{key}} NOT NULL,
    event_key {{key}} NOT NULL,
    state {{ws}} NOT NULL,
    attempt {{int}} NOT NULL,
    next_at {{int}} NOT NULL,
    error {{text}} NOT NULL,
    updated_at {{int}} NOT NULL,
    PRIMARY KEY (workspace, sink, seq),
    CONSTRAINT event_parked_state CHECK ({{one_of:state parked dead}})
) {{small}};

-- name: create_event_parked_due
CREATE INDEX event_parked_due ON event_parked (workspace, state, sink, next_at);

-- name: create_event_parked_seq
CREATE INDEX event_parked_seq ON event_parked (workspace, seq);

-- name: create_event_marks
CREATE TABLE event_marks (
    workspace {{ws}} NOT NULL,
    sink {{key}} NOT NULL,
    mark {{key}} NOT NULL,
    marked_at {{int}} NOT NULL,
    PRIMARY KEY (workspace, sink, mark)
) {{small}};
