"""What a run writes to disk, and how it resumes."""
