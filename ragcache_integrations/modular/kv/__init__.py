"""Keys and values of modules: computed, stored, put together."""
