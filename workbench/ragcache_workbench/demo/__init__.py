"""``ragcache demo``: the same questions before and after the swap, measured."""
