"""The LLM class for LlamaIndex."""
