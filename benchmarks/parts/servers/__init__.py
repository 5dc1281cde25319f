"""Servers, routers and what watches them."""
