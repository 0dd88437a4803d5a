CREATE TABLE openoutbox_events (
    event_id UUID PRIMARY KEY,
    event_type TEXT NOT NULL,
    partition_key TEXT,
    payload BYTEA NOT NULL,
    headers JSONB NOT NULL DEFAULT '{}',
    status TEXT NOT NULL DEFAULT 'PENDING',
    attempts INT NOT NULL DEFAULT 0,
    last_error TEXT,
    available_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    locked_by TEXT,
    locked_at TIMESTAMPTZ,
    delivered_at TIMESTAMPTZ,
    created_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    updated_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    CONSTRAINT check_valid_status CHECK ( status IN ('PENDING', 'DELIVERING', 'DELIVERED', 'DEAD') )
);

CREATE INDEX IF NOT EXISTS idx_openoutbox_processing_queue ON public.openoutbox_events (available_at ASC, created_at ASC) WHERE status = 'PENDING';

CREATE INDEX IF NOT EXISTS idx_openoutbox_stuck_leases ON public.openoutbox_events (locked_at ASC) WHERE status = 'DELIVERING';

CREATE INDEX IF NOT EXISTS idx_openoutbox_metrics_count ON public.openoutbox_events (status) INCLUDE (attempts) WHERE status = 'PENDING';

CREATE INDEX IF NOT EXISTS idx_openoutbox_metrics_lag ON public.openoutbox_events (status, created_at ASC) WHERE status = 'PENDING';

CREATE INDEX IF NOT EXISTS idx_openoutbox_prune_delivered ON openoutbox_events (delivered_at) WHERE status = 'DELIVERED';

CREATE INDEX IF NOT EXISTS idx_openoutbox_prune_dead ON openoutbox_events (updated_at) WHERE status = 'DEAD';
