"""What is evaluated: pipelines of both frameworks, and stock ones."""
