"""Runs inside vLLM's process: scheduler, host tier, driver."""
