"""The HTML report of a run: tables, plots, comparisons."""
