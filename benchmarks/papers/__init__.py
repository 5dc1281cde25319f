"""The papers' experiments as runs of the evaluation: ours next to their figures."""
