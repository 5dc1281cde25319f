"""The LLM classes for LangChain."""
