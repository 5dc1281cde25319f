"""Data sets (MMLU, Natural Questions, PubMedQA, QMSum) and their metrics."""
