"""What in prompts keeps KV caches from being reused."""
