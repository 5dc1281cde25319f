"""Keys and values of modules: encoding, storage, assembly."""
