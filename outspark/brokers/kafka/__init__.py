"""Kafka: its client, its publisher and its feed."""
