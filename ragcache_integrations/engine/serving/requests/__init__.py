"""What a request to the server asks for, read and checked."""
