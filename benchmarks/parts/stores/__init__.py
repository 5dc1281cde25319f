"""Vector stores to measure, and questions to ask them."""
