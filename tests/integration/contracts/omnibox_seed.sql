CREATE TABLE outbox_events (
    id                UUID PRIMARY KEY,
    event_type        VARCHAR(100) NOT NULL,
    aggregate_type    VARCHAR(50)  NOT NULL,
    aggregate_id      UUID         NOT NULL,
    topic             VARCHAR(255) NOT NULL,
    partition_key     VARCHAR(255) NOT NULL,
    payload           JSONB        NOT NULL,
    headers           JSONB,
    trace_id          VARCHAR(64),
    idempotency_key   VARCHAR(128),
    correlation_id    VARCHAR(64),
    causation_id      VARCHAR(64),
    schema_version    VARCHAR(50),
    status            VARCHAR(20)  NOT NULL DEFAULT 'pending',
    attempts_made     INTEGER      NOT NULL DEFAULT 0,
    max_attempts      INTEGER      NOT NULL DEFAULT 6,
    last_error        VARCHAR(2000),
    scheduled_at      TIMESTAMPTZ  NOT NULL,
    completed_at      TIMESTAMPTZ,
    locked_at         TIMESTAMPTZ,
    locked_by         VARCHAR(255),
    created_at        TIMESTAMPTZ  NOT NULL DEFAULT timezone('UTC', now()),
    updated_at        TIMESTAMPTZ           DEFAULT timezone('UTC', now()),
    CONSTRAINT ck_outbox_events_attempts_valid CHECK (attempts_made <= max_attempts),
    CONSTRAINT ck_outbox_events_completed_status_consistency CHECK (
        (status = 'completed' AND completed_at IS NOT NULL) OR
        (status <> 'completed' AND completed_at IS NULL)
    ),
    CONSTRAINT ck_outbox_events_lock_consistency CHECK (
        (locked_at IS NULL AND locked_by IS NULL) OR
        (locked_at IS NOT NULL AND locked_by IS NOT NULL)
    )
);

CREATE INDEX idx_outbox_events_pending_fetch
    ON outbox_events (scheduled_at)
    WHERE status = 'pending' AND locked_at IS NULL AND attempts_made < max_attempts;

CREATE INDEX idx_outbox_events_locked_at
    ON outbox_events (locked_at)
    WHERE locked_at IS NOT NULL;

CREATE INDEX idx_outbox_events_completed_cleanup
    ON outbox_events (completed_at)
    WHERE status = 'completed' AND completed_at IS NOT NULL;

CREATE UNIQUE INDEX idx_outbox_events_idempotency_key
    ON outbox_events (idempotency_key)
    WHERE idempotency_key IS NOT NULL;

CREATE INDEX idx_outbox_events_created_at ON outbox_events (created_at);

CREATE INDEX idx_outbox_events_updated_at ON outbox_events (updated_at);

CREATE TABLE inbox_events (
    id                UUID PRIMARY KEY,
    event_type        VARCHAR(100) NOT NULL,
    message_id        VARCHAR(255) NOT NULL,
    consumer_group    VARCHAR(255) NOT NULL,
    source            VARCHAR(255) NOT NULL,
    payload           JSONB        NOT NULL,
    headers           JSONB,
    trace_id          VARCHAR(64),
    idempotency_key   VARCHAR(128),
    correlation_id    VARCHAR(64),
    causation_id      VARCHAR(64),
    schema_version    VARCHAR(50),
    status            VARCHAR(20)  NOT NULL DEFAULT 'pending',
    attempts_made     INTEGER      NOT NULL DEFAULT 0,
    max_attempts      INTEGER      NOT NULL DEFAULT 6,
    last_error        VARCHAR(2000),
    scheduled_at      TIMESTAMPTZ  NOT NULL,
    completed_at      TIMESTAMPTZ,
    locked_at         TIMESTAMPTZ,
    locked_by         VARCHAR(255),
    created_at        TIMESTAMPTZ  NOT NULL DEFAULT timezone('UTC', now()),
    updated_at        TIMESTAMPTZ           DEFAULT timezone('UTC', now()),
    CONSTRAINT ck_inbox_events_attempts_valid CHECK (attempts_made <= max_attempts),
    CONSTRAINT ck_inbox_events_completed_status_consistency CHECK (
        (status = 'completed' AND completed_at IS NOT NULL) OR
        (status <> 'completed' AND completed_at IS NULL)
    ),
    CONSTRAINT ck_inbox_events_lock_consistency CHECK (
        (locked_at IS NULL AND locked_by IS NULL) OR
        (locked_at IS NOT NULL AND locked_by IS NOT NULL)
    )
);

CREATE UNIQUE INDEX idx_inbox_deduplication
    ON inbox_events (message_id, consumer_group);

CREATE INDEX idx_inbox_events_pending_fetch
    ON inbox_events (scheduled_at)
    WHERE status = 'pending' AND locked_at IS NULL AND attempts_made < max_attempts;

CREATE INDEX idx_inbox_events_locked_at
    ON inbox_events (locked_at)
    WHERE locked_at IS NOT NULL;

CREATE INDEX idx_inbox_events_completed_cleanup
    ON inbox_events (completed_at)
    WHERE status = 'completed' AND completed_at IS NOT NULL;

CREATE UNIQUE INDEX idx_inbox_events_idempotency_key
    ON inbox_events (idempotency_key)
    WHERE idempotency_key IS NOT NULL;

CREATE INDEX idx_inbox_events_created_at ON inbox_events (created_at);

CREATE INDEX idx_inbox_events_updated_at ON inbox_events (updated_at);

CREATE TABLE outbox_events_partitioned (
    id                UUID         NOT NULL,
    event_type        VARCHAR(100) NOT NULL,
    aggregate_type    VARCHAR(50)  NOT NULL,
    aggregate_id      UUID         NOT NULL,
    topic             VARCHAR(255) NOT NULL,
    partition_key     VARCHAR(255) NOT NULL,
    payload           JSONB        NOT NULL,
    headers           JSONB,
    trace_id          VARCHAR(64),
    idempotency_key   VARCHAR(128),
    correlation_id    VARCHAR(64),
    causation_id      VARCHAR(64),
    schema_version    VARCHAR(50),
    status            VARCHAR(20)  NOT NULL DEFAULT 'pending',
    attempts_made     INTEGER      NOT NULL DEFAULT 0,
    max_attempts      INTEGER      NOT NULL DEFAULT 6,
    last_error        VARCHAR(2000),
    scheduled_at      TIMESTAMPTZ  NOT NULL,
    completed_at      TIMESTAMPTZ,
    locked_at         TIMESTAMPTZ,
    locked_by         VARCHAR(255),
    created_at        TIMESTAMPTZ  NOT NULL DEFAULT timezone('UTC', now()),
    updated_at        TIMESTAMPTZ           DEFAULT timezone('UTC', now()),
    CONSTRAINT ck_outbox_events_p_attempts_valid CHECK (attempts_made <= max_attempts),
    CONSTRAINT ck_outbox_events_p_completed_status_consistency CHECK (
        (status = 'completed' AND completed_at IS NOT NULL) OR
        (status <> 'completed' AND completed_at IS NULL)
    ),
    CONSTRAINT ck_outbox_events_p_lock_consistency CHECK (
        (locked_at IS NULL AND locked_by IS NULL) OR
        (locked_at IS NOT NULL AND locked_by IS NOT NULL)
    ),
    PRIMARY KEY (id, created_at)
) PARTITION BY RANGE (created_at);

CREATE INDEX idx_outbox_events_p_pending_fetch
    ON outbox_events_partitioned (scheduled_at)
    WHERE status = 'pending' AND locked_at IS NULL AND attempts_made < max_attempts;

CREATE INDEX idx_outbox_events_p_locked_at
    ON outbox_events_partitioned (locked_at)
    WHERE locked_at IS NOT NULL;

CREATE INDEX idx_outbox_events_p_completed_cleanup
    ON outbox_events_partitioned (completed_at)
    WHERE status = 'completed' AND completed_at IS NOT NULL;

CREATE UNIQUE INDEX idx_outbox_events_p_idempotency_key
    ON outbox_events_partitioned (idempotency_key, created_at)
    WHERE idempotency_key IS NOT NULL;

CREATE INDEX idx_outbox_events_p_created_at ON outbox_events_partitioned (created_at);

CREATE INDEX idx_outbox_events_p_updated_at ON outbox_events_partitioned (updated_at);

CREATE TABLE inbox_events_partitioned (
    id                UUID         NOT NULL,
    event_type        VARCHAR(100) NOT NULL,
    message_id        VARCHAR(255) NOT NULL,
    consumer_group    VARCHAR(255) NOT NULL,
    source            VARCHAR(255) NOT NULL,
    payload           JSONB        NOT NULL,
    headers           JSONB,
    trace_id          VARCHAR(64),
    idempotency_key   VARCHAR(128),
    correlation_id    VARCHAR(64),
    causation_id      VARCHAR(64),
    schema_version    VARCHAR(50),
    status            VARCHAR(20)  NOT NULL DEFAULT 'pending',
    attempts_made     INTEGER      NOT NULL DEFAULT 0,
    max_attempts      INTEGER      NOT NULL DEFAULT 6,
    last_error        VARCHAR(2000),
    scheduled_at      TIMESTAMPTZ  NOT NULL,
    completed_at      TIMESTAMPTZ,
    locked_at         TIMESTAMPTZ,
    locked_by         VARCHAR(255),
    created_at        TIMESTAMPTZ  NOT NULL DEFAULT timezone('UTC', now()),
    updated_at        TIMESTAMPTZ           DEFAULT timezone('UTC', now()),
    CONSTRAINT ck_inbox_events_p_attempts_valid CHECK (attempts_made <= max_attempts),
    CONSTRAINT ck_inbox_events_p_completed_status_consistency CHECK (
        (status = 'completed' AND completed_at IS NOT NULL) OR
        (status <> 'completed' AND completed_at IS NULL)
    ),
    CONSTRAINT ck_inbox_events_p_lock_consistency CHECK (
        (locked_at IS NULL AND locked_by IS NULL) OR
        (locked_at IS NOT NULL AND locked_by IS NOT NULL)
    ),
    PRIMARY KEY (id, created_at)
) PARTITION BY RANGE (created_at);

CREATE UNIQUE INDEX idx_inbox_events_p_deduplication
    ON inbox_events_partitioned (message_id, consumer_group, created_at);

CREATE INDEX idx_inbox_events_p_pending_fetch
    ON inbox_events_partitioned (scheduled_at)
    WHERE status = 'pending' AND locked_at IS NULL AND attempts_made < max_attempts;

CREATE INDEX idx_inbox_events_p_locked_at
    ON inbox_events_partitioned (locked_at)
    WHERE locked_at IS NOT NULL;

CREATE INDEX idx_inbox_events_p_completed_cleanup
    ON inbox_events_partitioned (completed_at)
    WHERE status = 'completed' AND completed_at IS NOT NULL;

CREATE UNIQUE INDEX idx_inbox_events_p_idempotency_key
    ON inbox_events_partitioned (idempotency_key, created_at)
    WHERE idempotency_key IS NOT NULL;

CREATE INDEX idx_inbox_events_p_created_at ON inbox_events_partitioned (created_at);

CREATE INDEX idx_inbox_events_p_updated_at ON inbox_events_partitioned (updated_at);
