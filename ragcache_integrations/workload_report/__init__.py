"""``ragcache profile --workload``: what caching would do for your own traffic, as an HTML page.

The figures are those of :mod:`ragcache_integrations.knowledge_tree.simulation.characterise`.
"""
