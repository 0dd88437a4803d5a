"""NATS JetStream: its client, its publisher and its feed."""
