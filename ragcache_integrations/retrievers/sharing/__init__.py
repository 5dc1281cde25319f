"""State that copies and rebuilt objects share."""
