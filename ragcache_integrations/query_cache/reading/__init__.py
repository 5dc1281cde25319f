"""Looking up: lookups, decisions, answers."""
