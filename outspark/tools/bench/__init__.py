"""`outspark bench`: what the relay does, beside the most that the database can do, measured in one run."""
