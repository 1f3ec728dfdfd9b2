-- The sandbox's tables. One schema per service, as if each service had a database of its own; the prefix keeps
-- them, and the reset that empties them, away from anything else that lives in the same database.

CREATE SCHEMA sandbox_payments;
CREATE TABLE sandbox_payments.orders (
    order_id    text PRIMARY KEY,
    tenant      text NOT NULL,
    customer_id text NOT NULL,
    currency    text NOT NULL,
    total_inr   bigint NOT NULL CHECK (total_inr >= 0),
    chargeback  text NOT NULL CHECK (chargeback IN ('none', 'open')),
    note        text
);
CREATE INDEX ON sandbox_payments.orders (customer_id);
CREATE TABLE sandbox_payments.payments (
    payment_id  text PRIMARY KEY,
    order_id    text NOT NULL REFERENCES sandbox_payments.orders ON DELETE CASCADE,
    amount_inr  bigint NOT NULL CHECK (amount_inr > 0),
    status      text NOT NULL CHECK (status IN ('captured', 'authorised', 'voided')),
    at          timestamptz NOT NULL
);
CREATE INDEX ON sandbox_payments.payments (order_id);

CREATE SCHEMA sandbox_refunds;
CREATE SEQUENCE sandbox_refunds.refund_numbers START 9001;
CREATE TABLE sandbox_refunds.refunds (
    refund_id   text PRIMARY KEY,
    tenant      text NOT NULL,
    order_id    text NOT NULL,
    payment_id  text NOT NULL,
    amount_inr  bigint NOT NULL CHECK (amount_inr > 0),
    status      text NOT NULL CHECK (status IN ('pending', 'settled', 'failed')),
    created_at  timestamptz NOT NULL,
    -- When the row reached the primary; the list reads a replica that lags. Seeded rows were always there.
    written_at  timestamptz NOT NULL
);
CREATE INDEX ON sandbox_refunds.refunds (order_id);
CREATE INDEX ON sandbox_refunds.refunds (payment_id);
CREATE TABLE sandbox_refunds.idempotency_keys (
    tenant       text NOT NULL,
    key          text NOT NULL,
    request_hash text NOT NULL,
    resource_id  text NOT NULL,
    status_code  integer NOT NULL,
    body         text NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (tenant, key)
);

CREATE SCHEMA sandbox_policy_store;
CREATE TABLE sandbox_policy_store.passages (
    chunk_id   text PRIMARY KEY,
    doc        text NOT NULL,
    version    text NOT NULL,
    section    text NOT NULL,
    title      text NOT NULL,
    text       text NOT NULL,
    is_current boolean NOT NULL,
    search     tsvector GENERATED ALWAYS AS (
        setweight(to_tsvector('english', title), 'B') || setweight(to_tsvector('english', text), 'C')
    ) STORED
);
CREATE INDEX ON sandbox_policy_store.passages USING gin (search);

CREATE SCHEMA sandbox_notifications;
CREATE SEQUENCE sandbox_notifications.notification_numbers START 1001;
CREATE TABLE sandbox_notifications.notifications (
    notification_id text PRIMARY KEY,
    tenant          text NOT NULL,
    recipient       text NOT NULL,
    channel         text NOT NULL CHECK (channel IN ('email', 'inbox')),
    template        text,
    subject         text NOT NULL,
    body            text NOT NULL,
    reference       text,
    status          text NOT NULL,
    created_at      timestamptz NOT NULL,
    written_at      timestamptz NOT NULL
);
CREATE INDEX ON sandbox_notifications.notifications (recipient);
CREATE TABLE sandbox_notifications.idempotency_keys (
    LIKE sandbox_refunds.idempotency_keys INCLUDING ALL
);

CREATE SCHEMA sandbox_admin;
CREATE TABLE sandbox_admin.world (
    only_row      boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    schema_digest text NOT NULL,
    offset_s      double precision NOT NULL DEFAULT 0
);
CREATE TABLE sandbox_admin.settings (
    service                     text PRIMARY KEY,
    idempotency_key_retention_s integer NOT NULL,
    replication_lag_s           integer NOT NULL,
    honour_keys                 boolean NOT NULL,
    lookup_by_key               boolean NOT NULL
);
CREATE TABLE sandbox_admin.faults (
    fault_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    service   text NOT NULL,
    operation text NOT NULL,
    kind      text NOT NULL,
    times     integer NOT NULL,
    after     integer NOT NULL,
    delay_s   double precision NOT NULL,
    skipped   integer NOT NULL DEFAULT 0,
    fired     integer NOT NULL DEFAULT 0
);
CREATE TABLE sandbox_admin.requests (
    entry_id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    service         text NOT NULL,
    operation       text NOT NULL,
    method          text NOT NULL,
    path            text NOT NULL,
    query           text NOT NULL,
    tenant          text,
    request_id      text,
    idempotency_key text,
    body            text NOT NULL,
    status          integer,
    fault           text,
    at              timestamptz NOT NULL
);
