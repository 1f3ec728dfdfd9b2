-- Everything that a task leaves behind, in one schema of its own. The schema itself is made by the migration runner.
-- Columns named *_json hold JSON as text: unlike jsonb, text keeps numbers and key order exactly as they were.

-- Payloads, prompts and raw replies, each once, by digest.
CREATE TABLE agentic_loop.payloads (
    digest text PRIMARY KEY,
    content_json text NOT NULL,
    size_bytes bigint NOT NULL
);

-- One row per attempt at a piece of evidence; nothing is ever changed or deleted. The newest row of an ordinal counts.
CREATE TABLE agentic_loop.evidence (
    sequence bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_id text NOT NULL,
    evidence_id text NOT NULL,
    ordinal integer NOT NULL CHECK (ordinal > 0),
    request_id text NOT NULL,
    step integer NOT NULL,
    tool text NOT NULL,
    args_json text NOT NULL,
    fetched_at timestamptz NOT NULL,
    source text NOT NULL,
    ref text NOT NULL,
    payload_digest text NOT NULL REFERENCES agentic_loop.payloads (digest),
    size_bytes bigint NOT NULL,
    UNIQUE (task_id, evidence_id, request_id)
);
CREATE INDEX evidence_newest ON agentic_loop.evidence (task_id, ordinal, sequence DESC);

-- The journal: what happened to each call of each step. ``attempt`` is the request id, or the digest of an entry
-- without one; it tells a repeated write from a repeated step.
CREATE TABLE agentic_loop.steps (
    sequence bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_id text NOT NULL,
    version integer NOT NULL,
    call integer NOT NULL,
    attempt text NOT NULL,
    step integer NOT NULL,
    kind text NOT NULL,
    at timestamptz NOT NULL,
    entry_json text NOT NULL,
    UNIQUE (task_id, version, call, attempt)
);

-- The register of tasks.
CREATE TABLE agentic_loop.tasks (
    sequence bigint GENERATED ALWAYS AS IDENTITY,
    task_id text PRIMARY KEY,
    trace_id text NOT NULL,
    loop text NOT NULL,
    tenant text NOT NULL,
    goal text NOT NULL,
    requester text NOT NULL,
    status text NOT NULL,
    reason text NOT NULL DEFAULT '',
    detail text NOT NULL DEFAULT '',
    step_count integer NOT NULL DEFAULT 0,
    wake_at timestamptz,
    started_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    parent_task_id text,
    closed_by text,
    closing_note text,
    closed_at timestamptz
);
CREATE INDEX tasks_newest ON agentic_loop.tasks (started_at DESC, sequence DESC);
CREATE INDEX tasks_due ON agentic_loop.tasks (wake_at) WHERE status = 'RUNNING' AND wake_at IS NOT NULL;

-- Escalation packets; the newest one of a task counts.
CREATE TABLE agentic_loop.packets (
    sequence bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_id text NOT NULL,
    version integer NOT NULL,
    packet_json text NOT NULL
);
CREATE INDEX packets_newest ON agentic_loop.packets (task_id, version DESC, sequence DESC);

-- Who came last to each task. The lock itself is an advisory lock of the holder's session.
CREATE TABLE agentic_loop.leases (
    task_id text PRIMARY KEY,
    fence bigint NOT NULL,
    holder text NOT NULL,
    acquired_at timestamptz NOT NULL
);

-- The approvals: one action of one task each, decided once, consumed once.
CREATE TABLE agentic_loop.approvals (
    sequence bigint GENERATED ALWAYS AS IDENTITY,
    id text PRIMARY KEY,
    task_id text NOT NULL,
    tenant text NOT NULL,
    loop text NOT NULL,
    tool text NOT NULL,
    args_json text NOT NULL,
    idempotency_key text,
    action_hash text NOT NULL,
    required_role text NOT NULL,
    requester text NOT NULL,
    policy_ids_json text NOT NULL,
    policy_clause text NOT NULL,
    reason text NOT NULL,
    evidence_ids_json text NOT NULL,
    round integer NOT NULL,
    requested_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    decision text CHECK (decision IN ('approved', 'edited', 'rejected', 'answered', 'expired')),
    decided_by text NOT NULL DEFAULT '',
    decided_role text NOT NULL DEFAULT '',
    decided_at timestamptz,
    message text NOT NULL DEFAULT '',
    edited_args_json text NOT NULL DEFAULT '{}',
    consumed_by text,
    UNIQUE (task_id, action_hash, round)
);
CREATE INDEX approvals_pending ON agentic_loop.approvals (requested_at, sequence) WHERE decision IS NULL;

-- The ledger: one row per business effect. ``approval_id`` is the approval that was consumed for it.
CREATE TABLE agentic_loop.intents (
    sequence bigint GENERATED ALWAYS AS IDENTITY,
    tenant text NOT NULL,
    key text NOT NULL,
    action_hash text NOT NULL,
    tool text NOT NULL,
    args_json text NOT NULL,
    task_id text NOT NULL,
    status text NOT NULL CHECK (status IN ('intended', 'executed', 'failed', 'unknown')),
    dispatches integer NOT NULL CHECK (dispatches > 0),
    approval_id text,
    intended_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    finished_at timestamptz,
    request_id text NOT NULL,
    result_json text,
    ref text NOT NULL DEFAULT '',
    fault_json text,
    flagged boolean NOT NULL DEFAULT false,
    flag_detail text NOT NULL DEFAULT '',
    PRIMARY KEY (tenant, key)
);
CREATE INDEX intents_of_task ON agentic_loop.intents (task_id, sequence);
CREATE INDEX intents_flagged ON agentic_loop.intents (sequence) WHERE flagged;

-- What every intent looked like after every change, by whoever made it: a failed intent that is begun anew, or a row
-- that an operator edits by hand, leaves its earlier self here.
CREATE TABLE agentic_loop.intent_history (
    sequence bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text NOT NULL,
    key text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    intent jsonb NOT NULL
);
CREATE INDEX intent_history_of_key ON agentic_loop.intent_history (tenant, key, sequence);

CREATE FUNCTION agentic_loop.keep_intent_history() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO agentic_loop.intent_history (tenant, key, intent) VALUES (NEW.tenant, NEW.key, to_jsonb(NEW));
    RETURN NULL;
END
$$;

CREATE TRIGGER keep_history AFTER INSERT OR UPDATE ON agentic_loop.intents
FOR EACH ROW EXECUTE FUNCTION agentic_loop.keep_intent_history();
