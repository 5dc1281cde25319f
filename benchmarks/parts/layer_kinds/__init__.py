"""Models whose layers see different parts of a prompt, and streams of prompts for them."""
