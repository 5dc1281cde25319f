"""LlamaIndex's nodes as the query cache hands them out, and as they are saved."""

from __future__ import annotations

import json
from typing import Any

from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, TextNode
from llama_index.core.storage.docstore.utils import doc_to_json, json_to_doc

from ragcache_integrations.core.saved_values import decode_value, encode_value
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.copying import copy_model
from ragcache_integrations.retrievers.retrieval import QUERY_CACHE_METADATA, Note

__all__ = ["copy_node", "decode_node", "encode_node", "identify_node"]


def identify_node(scored: NodeWithScore) -> tuple[str, str]:
    """Return a node's id and its text, without its metadata."""
    node = scored.node
    if type(node) is TextNode:  # as most are, and asking costs as much as all else here
        return node.id_, node.text
    return node.node_id, node.get_content(MetadataMode.NONE)


def copy_node(node: BaseNode, note: Note | None) -> BaseNode:
    """Return a node that the caller may change."""
    copied = copy_model(node)
    if note is not None:
        copied.metadata[QUERY_CACHE_METADATA] = dict(note)
        # It is about this answer: neither the model's prompt nor an embedding may change by it.
        copied.excluded_llm_metadata_keys.append(QUERY_CACHE_METADATA)
        copied.excluded_embed_metadata_keys.append(QUERY_CACHE_METADATA)
    return copied


def encode_node(scored: NodeWithScore) -> dict[str, Any]:
    """Turn a node and its score into what JSON can hold.

    Raises:
        ConfigurationError: It would not come back as it is.
    """
    score = None if scored.score is None else float(scored.score)
    metadata = encode_value(scored.node.metadata, "metadata")
    bare = scored.node.model_copy(update={"metadata": {}})
    try:
        saved = {"node": doc_to_json(bare), "metadata": {}, "score": score}
        back = decode_node(json.loads(json.dumps(saved)))
        same = type(back.node) is type(bare) and back.node == bare
    except (TypeError, ValueError):
        same = False
    if not same:
        kind = type(scored.node).__name__
        msg = f"a {kind} that JSON cannot hold cannot be saved: {scored.node!r:.200}"
        raise ConfigurationError(msg)
    return saved | {"metadata": metadata}


def decode_node(saved: dict[str, Any]) -> NodeWithScore:
    """Turn that into the node and its score again."""
    node = json_to_doc(saved["node"])
    node.metadata = decode_value(saved["metadata"])
    return NodeWithScore(node=node, score=saved["score"])
