"""A model-independent HTTP frontend for System One decision models: it forwards bytes and knows no model."""
