"""Settings: the models, and how a file, the environment and flags fill them."""
