"""Calls to the frameworks' own models, for rooms that know no framework."""
