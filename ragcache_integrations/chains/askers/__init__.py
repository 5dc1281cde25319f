"""How the frameworks' own models are called by rooms that know no framework."""
