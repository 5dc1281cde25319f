"""Retrieval that streams its stages."""
