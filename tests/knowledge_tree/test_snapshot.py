"""What the knowledge tree shows of itself."""

from __future__ import annotations

import io
import json
import pickle

from rich.console import Console

from ragcache_integrations.knowledge_tree.snapshot import SHOWN_DEPTH

from .library import Library


def test_however_deep_the_tree_is_it_can_be_sent_and_read() -> None:
    deep = 1200  # beyond Python's limit of recursion, were all of it nested
    library = Library(gpu_blocks=6000)
    library.begin(*(f"d{number}" for number in range(deep)))
    snapshot = pickle.loads(pickle.dumps(library.tree.snapshot()))
    nodes = list(snapshot.nodes())
    assert [node.name for node in nodes[:3]] == ["", "d0", "d1"]
    assert len(nodes) == SHOWN_DEPTH + 1
    assert nodes[-1].deeper == deep - SHOWN_DEPTH
    assert [node.deeper for node in nodes[:-1]] == [0] * SHOWN_DEPTH
    assert f"{deep + 1} nodes" in snapshot.title
    assert f"and {deep - SHOWN_DEPTH} more below" in str(snapshot)
    assert f'"deeper": {deep - SHOWN_DEPTH}' in json.dumps(snapshot.as_dict())
    drawn = io.StringIO()
    Console(file=drawn, width=2000).print(snapshot)
    assert f"and {deep - SHOWN_DEPTH} more below" in drawn.getvalue()


def test_a_tree_of_usual_depth_is_shown_whole() -> None:
    library = Library(gpu_blocks=1000)
    library.begin(*(f"d{number}" for number in range(SHOWN_DEPTH)))
    nodes = list(library.tree.snapshot().nodes())
    assert len(nodes) == SHOWN_DEPTH + 1
    assert not any(node.deeper for node in nodes)
