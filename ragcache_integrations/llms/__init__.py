"""Drop-in LLM and chat-model classes: the bundled engine, or an OpenAI-compatible server."""
