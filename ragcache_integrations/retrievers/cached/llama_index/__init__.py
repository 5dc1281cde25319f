"""The cached retriever for LlamaIndex."""
