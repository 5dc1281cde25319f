"""Calls the frameworks' own models for the framework-free packages."""
