"""Intake: consumes messages from a broker and accepts them into the inbox table."""
