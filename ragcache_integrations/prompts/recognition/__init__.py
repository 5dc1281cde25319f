"""Which parts of a prompt are retrieved documents."""
