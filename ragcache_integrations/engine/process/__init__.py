"""The engine's process as its application sees it: start, exchange, supervision."""
