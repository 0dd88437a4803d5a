"""From the inbox table to handlers: claim a batch, run it in a handler thread, settle it."""
