"""From the inbox table to a handler."""
