"""``ragcache cache-report``: what a cache of answers would have served on your own log."""
