"""The cached retriever for LangChain."""
