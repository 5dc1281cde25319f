"""Words that all rooms share: prompts, checks, files, threads; imports only ``errors``."""
