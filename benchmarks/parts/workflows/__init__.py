"""A workflow of three agents, beside the requests of other users."""
