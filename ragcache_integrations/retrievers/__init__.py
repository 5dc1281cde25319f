"""Drop-in retrievers.

``core`` and what it is made of know no framework; ``langchain`` and ``llama_index`` translate.
"""
