"""HTTP endpoints (webhooks): the publisher and what keeps it from calling where it must not."""
