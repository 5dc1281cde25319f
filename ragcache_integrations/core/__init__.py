"""What all rooms speak of: prompts, answers, checks, archives. Imports ``errors`` alone."""
