"""Models by role: adapters, their registry, vocabularies and checkpoints."""
