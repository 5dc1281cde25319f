"""``ragcache profile --workload``: what caching would do for your own traffic, as an HTML page.

The figures are those of :mod:`ragcache_workbench.simulation.characterise`.
"""
