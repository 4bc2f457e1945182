"""A worker: its session, how it shares updates, where its samples come from, and its records."""
