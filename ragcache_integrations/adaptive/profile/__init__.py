"""What a query needs: estimated by a heuristic or a model, or recorded."""
