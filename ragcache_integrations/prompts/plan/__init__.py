"""What a layout will reuse."""
