"""What a question asks for, by a heuristic, a model, or a recording."""
