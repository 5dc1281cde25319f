"""Plans which prompt layout reuses the most."""
