"""Evaluation, demo, reports and simulations for ragcache-integrations."""
