"""A search as a run that the frameworks' callbacks see."""
