"""What our retrievers and LLM classes add to the frameworks' own."""
