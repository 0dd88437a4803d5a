"""Redis Streams: its servers and its publisher."""
