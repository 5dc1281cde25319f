"""What must hold after every step, whatever the traffic."""

from __future__ import annotations

from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

from ragcache_integrations.knowledge_tree.node import in_group
from tests.engine.in_vllm.simulation import Engine


def check(engine: Engine) -> None:
    """Complain of blocks that are lost, or in two places, or not what they are said to be."""
    pool = engine.pool
    queue = pool.free_block_queue
    free = [block.block_id for block in queue.get_all_free_blocks()]
    used = [block.block_id for block in pool.blocks if block.ref_cnt and not block.is_null]
    assert len(free) == queue.num_free_blocks
    assert sorted([*free, *used, pool.null_block.block_id]) == list(range(len(pool.blocks)))
    unknown = engine.worker.wrong_blocks
    for block in pool.blocks:
        if block.block_hash is not None and block.block_id not in unknown:
            assert engine.worker.gpu[block.block_id] == engine.content[block.block_hash[:-4]]
    if engine.documents is not None:
        check_gpu_tier(engine)
        check_host_tier(engine)


def check_gpu_tier(engine: Engine) -> None:
    """Complain of idle blocks that vLLM does not know of, or that no request can reach.

    The latter may happen in either tier where a block before them was forgotten because it could
    not be read back. It costs memory until they go, and nothing else.
    """
    cached = engine.pool.cached_block_hash_to_block
    windows = engine.documents._windows
    for name, block in engine.documents.tree.gpu.slots.items():
        key, group = name if isinstance(name, tuple) else (name, 0)
        assert block.block_hash == make_block_hash_with_group_id(key, group)
        assert block.ref_cnt == 0
        assert cached.contain(block.block_hash, block.block_id)
        if windows[group] is not None:  # what it sees begins somewhere
            continue
        before = engine.before[key]
        above = before and make_block_hash_with_group_id(before, group)
        within = above is None or cached.get_one_block(above)
        assert within or engine.worker.copies_fail, "out of reach"


def check_host_tier(engine: Engine) -> None:
    """Complain of copies that are wrong, out of reach, or kept from eviction for nobody."""
    tree = engine.documents.tree
    cached = engine.pool.cached_block_hash_to_block
    slots = tree.host.slots
    assert len(slots) <= tree.host_blocks
    assert len(set(slots.values())) == len(slots), "two copies in one place"
    failed = engine.scheduler.connector._bad if engine.scheduler.connector else ()
    windows = engine.documents._windows
    for name, slot in slots.items():
        key, group = name if isinstance(name, tuple) else (name, 0)
        if slot not in failed and slot not in engine.worker.failed_slots:
            assert engine.worker.host[slot] == engine.content[key], "the host holds something else"
        in_gpu = cached.get_one_block(make_block_hash_with_group_id(key, group))
        assert in_gpu or name in tree.owner(key).host.idle, "held for nobody"
        before = engine.before[key]
        if before is None or windows[group] is not None:  # what it sees begins somewhere
            continue
        above = make_block_hash_with_group_id(before, group)
        within = in_group(before, group) in slots or cached.get_one_block(above)
        assert within or engine.worker.copies_fail, "out of reach"


def check_at_rest(engine: Engine) -> None:
    """Complain of what is left when everybody has gone."""
    assert not engine.busy
    check(engine)
    pool, documents = engine.pool, engine.documents
    assert not engine.scheduler.requests
    assert pool.get_num_free_blocks() == len(pool.blocks) - 1, "blocks were lost"
    if documents is not None:
        documents.snapshot()  # looks whether somebody has gone since the last step
        assert not documents._paths
        assert not any(node.requests or node.running for node in documents.tree.nodes())
    assert engine.scheduler.reset_prefix_cache()
    assert pool.get_num_free_blocks() == len(pool.blocks) - 1
    if documents is not None:
        assert not documents.tree.gpu.slots
        assert not documents.tree.host.slots
        assert not list(documents.tree.nodes())
