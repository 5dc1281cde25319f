"""Whole pipelines, from the question to the answer.

``core``, ``knobs`` and ``askers`` know no framework; ``langchain`` and ``llama_index`` translate.
"""

__all__: list[str] = []
