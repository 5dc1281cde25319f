"""Whole pipelines, from the question to the answer.

``pipeline`` knows no framework; ``langchain`` and ``llama_index`` translate.
"""

__all__: list[str] = []
