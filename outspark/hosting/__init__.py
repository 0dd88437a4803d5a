"""What every lane needs from whatever hosts it, without Spark: its spec, the hand-over, the stop, the process cache."""
