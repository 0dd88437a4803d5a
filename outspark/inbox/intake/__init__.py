"""From a broker into the inbox table."""
