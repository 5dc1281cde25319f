"""What an object hands on to those that are rebuilt from it."""
