"""What is evaluated: the systems of both frameworks, and stock ones."""
