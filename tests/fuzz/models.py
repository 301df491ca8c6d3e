"""Names of the model directories that generated documents may name."""

MODELS = ("small", "other")
