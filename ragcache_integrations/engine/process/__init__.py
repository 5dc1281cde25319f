"""The engine's process seen from the application: start, messages, supervision, restarts."""
