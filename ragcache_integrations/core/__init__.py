"""Words that all rooms share: prompts, archives, plots, threads; imports only ``errors``."""
