"""Shows what caching would do for one's own traffic, on the terminal and as an HTML page.

The figures are those of :mod:`ragcache_integrations.knowledge_tree.simulation.characterise`.
"""
