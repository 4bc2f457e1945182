"""How workers share updates: the collective exchanges, and the store with its servers and transport."""
