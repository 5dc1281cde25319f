"""What a prompt will reuse, before it is sent."""
