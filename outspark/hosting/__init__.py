"""What a lane needs from its host, whether Spark or a test: spec, hand-over, stop signal, process cache."""
