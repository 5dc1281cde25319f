"""Clients for OpenAI-compatible servers: requests, timeouts, answers."""
