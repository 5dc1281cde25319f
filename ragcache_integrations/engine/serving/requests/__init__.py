"""Requests to the server, read and checked."""
