"""Drop-in LLM and chat-model classes over the bundled engine or any OpenAI-compatible server."""
