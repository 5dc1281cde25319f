"""Chains over modular attention reuse."""
