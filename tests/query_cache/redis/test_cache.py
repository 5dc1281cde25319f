"""A shared cache answers as one in memory does, whoever filled it. Against a real redis-server."""

from __future__ import annotations

import asyncio
import inspect
import math
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Candidate, Hit, QueryCache, QueryCacheCollector
from ragcache_integrations.query_cache.redis.cache import RedisQueryCache, RedisServer
from tests.query_cache import scenes
from tests.query_cache.reference import Vector
from tests.query_cache.scenes import Kind, Play, Scene, share_found
from tests.support.sizes import examples

from .servers import DIM, RealRedis, Shelf, near, patient, queries

# What asks nobody: fine to call in a coroutine.
IMMEDIATE = {"clear_soon", "fetch_count", "stats"}


@pytest.fixture
def server(shared_redis: RealRedis) -> RedisServer:
    return patient(shared_redis.url)


def ids(hit: Hit[str] | None) -> list[str]:
    assert hit is not None
    return [candidate.id for candidate in hit.candidates]


class TestHits:
    def test_what_one_process_asked_answers_another(self, server: RedisServer) -> None:
        shelf = Shelf()
        one, other = shelf.cache(server), shelf.cache(server)
        query = queries(1)[0]
        assert shelf.ask(one, query) is None
        hit = other.lookup(query, 3)
        assert ids(hit) == shelf.store.ranked(query)[:3]
        assert hit is not None
        assert (hit.distance, hit.reranked, hit.recall_bound) == (0.0, False, 1.0)
        assert [candidate.document for candidate in hit.candidates] == [
            shelf.texts[one] for one in ids(hit)
        ]
        assert 0 <= hit.age < 100
        assert shelf.asked == 1
        assert (one.stats().insertions, other.stats().hits, other.stats().proven) == (1, 1, 1)

    def test_candidates_are_ranked_for_the_new_question(self, server: RedisServer) -> None:
        shelf = Shelf()
        cache = shelf.cache(server, tolerance=math.inf, num_hyperplanes=1, multi_probe=1)
        query = queries(1)[0]
        shelf.ask(cache, query)
        for seed in range(20):
            asked = near(query, 0.8, seed)
            hit = cache.lookup(asked, 3)
            assert hit is not None
            fetched = [one.id for one in shelf.search(query, 12)]
            values = shelf.store.values(asked, fetched)
            assert ids(hit) == sorted(values, key=values.__getitem__)[:3]
            assert hit.scores == pytest.approx([values[one] for one in ids(hit)])

    def test_the_nearest_answers_and_the_newest_of_equal_ones(self, server: RedisServer) -> None:
        shelf = Shelf()
        cache = shelf.cache(server, rerank_factor=1, num_hyperplanes=1, multi_probe=1)
        ones = np.ones(DIM, dtype=np.float32)
        for number, shift in enumerate((0.3, -0.2, 0.4)):
            cache.insert(near(ones, shift), [shelf.candidate(f"id {number}")])
        hit = cache.lookup(ones, 1)
        assert ids(hit) == ["id 1"]
        cache.insert(near(ones, -0.2), [shelf.candidate("id 9")])  # the same embedding
        assert ids(cache.lookup(ones, 1)) == ["id 9"]

    def test_too_far_is_a_miss(self, server: RedisServer) -> None:
        shelf = Shelf()
        cache = shelf.cache(server, tolerance=0.2, num_hyperplanes=1, multi_probe=1)
        query = queries(1)[0]
        shelf.ask(cache, query)
        assert cache.lookup(near(query, 0.19), 3) is not None
        assert cache.lookup(near(query, 0.21), 3) is None
        assert cache.lookup(query, 13) is None  # twelve were fetched

    def test_a_store_with_no_more_answers_every_k(self, server: RedisServer) -> None:
        shelf = Shelf(count=5)
        cache = shelf.cache(server)
        query = queries(1)[0]
        shelf.ask(cache, query, k=2)
        assert len(ids(cache.lookup(query, 50))) == 5

    def test_zero_and_minus_zero_are_the_same_question(self, server: RedisServer) -> None:
        shelf = Shelf()
        cache = shelf.cache(server, tolerance=0.0)
        query = np.zeros(DIM, dtype=np.float32)
        query[0] = 1
        shelf.ask(cache, query)
        cache.insert(-np.zeros(DIM, dtype=np.float32) + query, shelf.search(query, 12))
        minus = query.copy()
        minus[1] = -0.0
        cache.insert(minus, shelf.search(query, 12))
        assert cache.explain(query, 3).entries == 1

    def test_without_documents_there_are_ids(self, server: RedisServer) -> None:
        shelf = Shelf()
        cache = shelf.cache(server, documents=None, vectors=None, exact_search=False)
        query = queries(1)[0]
        shelf.ask(cache, query)
        hit = cache.lookup(query, 3)
        assert ids(hit) == shelf.store.ranked(query)[:3]
        assert hit is not None
        assert [candidate.document for candidate in hit.candidates] == [None] * 3
        assert cache.fetch_count(3) == 3

    def test_scores_come_back(self, server: RedisServer) -> None:
        cache = Shelf().cache(server, documents=None, vectors=None, exact_search=False)
        query = queries(1)[0]
        cache.insert(query, [Candidate("a", "text", "f", 0.5), Candidate("b", "text")])
        hit = cache.lookup(query, 2)
        assert hit is not None
        assert [candidate.score for candidate in hit.candidates] == [0.5, None]

    @pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
    def test_it_answers_as_a_cache_in_memory(self, server: RedisServer, metric: Any) -> None:
        shelf = Shelf(metric)
        options: dict[str, Any] = {
            "num_hyperplanes": 3, "bucket_capacity": 200, "multi_probe": 1,
            "tolerance": 0.8, "seed": 5,
        }  # fmt: skip
        shared = shelf.cache(server, **options)
        local = QueryCache[str](
            DIM, 1, index="lsh", metric=metric, vectors=shelf.vectors, exact_search=True, **options
        )
        rng = np.random.default_rng(3)
        base, hits = queries(40), 0
        for step in range(400):
            query = near(base[rng.integers(len(base))], float(rng.choice([0, 0.3, 0.7])), step % 7)
            k, key = int(rng.integers(1, 5)), str(rng.integers(2))
            ours, theirs = shared.lookup(query, k, key), local.lookup(query, k, key)
            found = shelf.search(query, 4 * k)
            for cache, hit in ((shared, ours), (local, theirs)):
                if hit is None:
                    cache.insert(query, found, key)
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                hits += 1
                assert ids(ours) == ids(theirs)
                assert ours.distance == pytest.approx(theirs.distance, abs=1e-6)
                assert ours.recall_bound == theirs.recall_bound
                assert (ours.scores is None) == (theirs.scores is None)
                assert (ours.scores or ()) == pytest.approx(theirs.scores or ())
        assert hits > 60


class TestKeys:
    def test_other_keys_never_match(self, server: RedisServer) -> None:
        shelf = Shelf()
        one, other = shelf.cache(server), shelf.cache(server)
        query = queries(1)[0]
        keys: list[Any] = [None, "a", ("a",), frozenset({"a"}), b"a", 1, 1.5, (str, "a")]
        for number, key in enumerate(keys):
            one.insert(query, [shelf.candidate(f"id {number}")], key)
        for number, key in enumerate(keys):
            assert ids(other.lookup(query, 1, key)) == [f"id {number}"]
        assert one.lookup(query, 1, "b") is None

    def test_a_key_that_means_nothing_elsewhere_is_refused(self, server: RedisServer) -> None:
        cache = Shelf().cache(server)
        query = queries(1)[0]
        for key in (lambda: None, object()):
            with pytest.raises(ConfigurationError, match="keys hold must be"):
                cache.lookup(query, 1, key)
            with pytest.raises(ConfigurationError, match="keys hold must be"):
                cache.insert(query, [Candidate("a", "text")], key)
        with pytest.raises(ConfigurationError, match="hashable"):
            cache.lookup(query, 1, [])  # type: ignore[arg-type]  # the point

    def test_keys_and_embeddings_are_not_readable_in_names(
        self, server: RedisServer, shared_redis: RealRedis
    ) -> None:
        cache = Shelf().cache(server)
        cache.insert(queries(1)[0], [Candidate("a", "text")], "tenant-of-mine")
        with shared_redis.client() as client:
            names = [name for name in client.scan_iter() if cache.fingerprint.encode() in name]
            assert names
            values = [client.dump(name) for name in names]
        assert not any(b"tenant" in one for one in (*names, *values))
        embedding = np.asarray(queries(1)[0], dtype=np.float32)
        parts = [embedding.tobytes(), *(str(number)[:6].encode() for number in embedding.tolist())]
        assert not any(part in name for part in parts for name in names)


class TestSharing:
    def test_other_settings_are_another_cache(self, server: RedisServer) -> None:
        shelf = Shelf()
        usual = shelf.cache(server)
        others = [
            shelf.cache(server, **options)
            for options in (
                {"seed": 1},
                {"num_hyperplanes": 3},
                {"metric": "cosine"},
                {"tag": "another model"},
                {"exact_search": False},
            )
        ]
        others.append(shelf.cache(patient(server.url, shards=4)))
        prints = {cache.fingerprint for cache in (usual, *others)}
        assert len(prints) == len(others) + 1
        query = queries(1)[0]
        shelf.ask(usual, query)
        assert all(cache.lookup(query, 3) is None for cache in others)
        # What each process may decide for itself makes no difference.
        like = shelf.cache(server, tolerance=0.1, ttl=50, bucket_capacity=2, guarantee="exact")
        assert like.fingerprint == usual.fingerprint
        assert like.lookup(query, 3) is not None

    def test_the_fingerprint_is_the_same_on_every_machine(self, server: RedisServer) -> None:
        cache = Shelf().cache(server, tag="a model over a store")
        assert cache.fingerprint == "4a91f3c6be5a28e6"

    def test_one_lookup_is_one_command(self, own_redis: RealRedis) -> None:
        shelf = Shelf()
        cache = shelf.cache(patient(own_redis.url), num_hyperplanes=4, multi_probe=3)
        for query in queries(30):
            shelf.ask(cache, query)
        for query in queries(30):  # touches wait now
            assert cache.lookup(query, 3) is not None
        before = {name: own_redis.calls(name) for name in ("evalsha", "eval")}
        for number, query in enumerate(queries(30)):
            cache.lookup(near(query, 0.1 * (number % 5)), 3)
        assert own_redis.calls("evalsha") - before["evalsha"] == 30
        assert own_redis.calls("eval") == before["eval"]

    def test_what_is_not_used_makes_room(self, server: RedisServer) -> None:
        one = np.ones(DIM, dtype=np.float32)
        keys = [one * np.float32(1 + number) for number in range(4)]  # of one bucket
        for eviction, left in (("lru", [0, 3]), ("fifo", [2, 3])):
            shelf = Shelf()
            cache = shelf.cache(
                server, tolerance=0.0, eviction=eviction, bucket_capacity=2, num_hyperplanes=1
            )
            for number, key in enumerate(keys):
                cache.insert(key, [shelf.candidate(f"id {number}")])
                cache.lookup(keys[0], 1)  # notes that it was used
                cache.lookup(keys[0], 1)  # and tells
            found = [n for n, key in enumerate(keys) if cache.lookup(key, 1) is not None]
            assert found == left, eviction
            assert cache.stats().evictions == 2

    def test_an_entry_ends(self, server: RedisServer, shared_redis: RealRedis) -> None:
        shelf = Shelf()
        cache = shelf.cache(server, ttl=1e-6)
        lasting = shelf.cache(server, ttl=1000)
        query = queries(1)[0]
        shelf.ask(cache, query)
        assert lasting.lookup(query, 3) is not None
        assert cache.lookup(query, 3) is None
        assert cache.stats().expired == 1
        assert cache.lookup(query, 3) is None  # it has been deleted by now
        assert cache.stats().expired == 1
        assert lasting.lookup(query, 3) is None
        with shared_redis.client() as client:
            names = [name for name in client.scan_iter() if cache.fingerprint.encode() in name]
            assert all(client.pttl(name) > 0 for name in names)  # nothing stays for ever

    def test_an_entry_can_be_deleted(self, server: RedisServer) -> None:
        shelf = Shelf()
        one, other = shelf.cache(server), shelf.cache(server)
        query = queries(1)[0]
        shelf.ask(one, query)
        assert not other.delete(query, "another key")
        assert other.delete(query)
        assert not other.delete(query)
        assert one.lookup(query, 3) is None


class TestProofs:
    @pytest.mark.parametrize("kind", ["l2", "cosine"])
    @examples(120, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def test_no_hit_has_less_recall_than_proven(
        self,
        server: RedisServer,
        kind: Kind,
        data: st.DataObject,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        scene = data.draw(scenes.scenes(kind))
        with monkeypatch.context() as patched:
            patched.setattr(scenes, "QueryCache", _Shared(server))
            assert Play(scene).wrong == []

    @examples(60, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def test_several_entries_prove_together(
        self, server: RedisServer, data: st.DataObject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scene: Scene = data.draw(scenes.surrounded("cosine"))
        with monkeypatch.context() as patched:
            patched.setattr(scenes, "QueryCache", _Shared(server))
            assert Play(scene).wrong == []

    def test_they_do_prove_more_together(self, server: RedisServer) -> None:
        shelf = Shelf("cosine", count=400)
        options: dict[str, Any] = {
            "guarantee": "exact", "tolerance": 1.0, "num_hyperplanes": 1, "multi_probe": 1,
        }  # fmt: skip
        shared = shelf.cache(server, **options)
        centre = queries(1)[0]
        for seed in range(12):
            shelf.ask(shared, near(centre, 0.4, seed))
        together = 0
        for seed in range(100, 200):
            query = near(centre, 0.3, seed)
            hit = shared.lookup(query, 3)
            if hit is not None:
                assert share_found(shelf.store, query, hit, 3) == 1
                together += shared.explain(query, 3).recall_bound == 1.0
        assert together > 0


class _Shared:
    """Stands for ``QueryCache``: makes a shared cache of the same arguments."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server

    def __getitem__(self, _: Any) -> Any:
        return self

    def __call__(self, dim: int, _: int, tolerance: float, **options: Any) -> RedisQueryCache[str]:
        for name in ("unit_vectors", "longest"):
            del options[name]
        return _Informed(
            self._server,
            dim,
            tolerance,
            tag=uuid.uuid4().hex,
            num_hyperplanes=1,
            multi_probe=1,
            **options,
        )


class _Informed(RedisQueryCache[str]):
    """Looks something up before it tells the version, as everybody who searches does."""

    @property
    def store_version(self) -> int:
        self.lookup(np.ones(self.dim, dtype=np.float32), 1, "nobody's key")
        return super().store_version


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"tolerance": "auto"}, "got 'auto'"),
            ({"tolerance": -1}, "got -1"),
            ({"tag": ""}, "must name the embedding model and the store"),
            ({"tag": None}, "got None"),
            ({"metric": "ip", "guarantee": "exact"}, "metric='ip'"),
            ({"guarantee": "exact", "exact_search": False}, "needs exact_search=True"),
            ({"dim": 0}, "dim must be"),
            ({"ttl": -1}, "ttl must be"),
            ({"multi_probe": 9}, "multi_probe"),
            ({"eviction": "lfu"}, "lru, fifo"),
        ],
    )
    def test_what_cannot_be(self, server: RedisServer, options: dict[str, Any], said: str) -> None:
        with pytest.raises(ConfigurationError, match=said):
            Shelf().cache(server, **options)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ((np.zeros(DIM, dtype=np.float32), 3), "zero"),
            ((np.ones(3, dtype=np.float32), 3), "shape"),
            ((np.full(DIM, np.nan, dtype=np.float32), 3), "finite"),
            ((np.ones(DIM, dtype=np.float32), 0), "k must be"),
        ],
    )
    def test_what_cannot_be_asked(self, server: RedisServer, arguments: Any, said: str) -> None:
        cache = Shelf().cache(server)
        with pytest.raises(ConfigurationError, match=said):
            cache.lookup(*arguments)
        assert cache.stats().lookups == 0

    @pytest.mark.parametrize(
        ("found", "options", "said"),
        [
            ([], {}, "answers nothing"),
            (["a"], {}, "Candidate objects"),
            ([Candidate("a", "a")], {"store_version": 99}, "store_version"),
            ([Candidate("a", "a")], {"k": 0}, "k must be"),
        ],
    )
    def test_what_cannot_be_inserted(
        self, server: RedisServer, found: Sequence[Any], options: dict[str, Any], said: str
    ) -> None:
        cache = Shelf().cache(server)
        with pytest.raises(ConfigurationError, match=said):
            cache.insert(queries(1)[0], found, **options)
        assert cache.explain(queries(1)[0], 1).entries == 0

    def test_a_broken_reader_of_vectors_tells_whoever_inserts(self, server: RedisServer) -> None:
        def broken(_: Sequence[str]) -> Vector:
            raise RuntimeError("the store is gone")

        cache = Shelf().cache(server, vectors=broken)
        with pytest.raises(RuntimeError, match="gone"):
            cache.insert(queries(1)[0], [Candidate("a", "a")])


class TestAround:
    def test_why(self, server: RedisServer) -> None:
        shelf = Shelf()
        cache = shelf.cache(server, tolerance=0.5, num_hyperplanes=1, multi_probe=1)
        query = queries(1)[0]
        assert cache.explain(query, 3).reason.startswith("no entry")
        shelf.ask(cache, query)
        told = cache.explain(near(query, 0.25), 3)
        assert told.hit
        assert told.distance == pytest.approx(0.25, abs=1e-5)
        assert (told.tolerance, told.entries) == (0.5, 1)
        far = cache.explain(near(query, 0.75), 3)
        assert not far.hit
        assert "beyond the tolerance" in far.reason
        assert cache.stats().lookups == 1  # the one of ask

    def test_metrics(self, server: RedisServer) -> None:
        shelf = Shelf()
        cache = shelf.cache(server)
        shelf.ask(cache, queries(1)[0])
        told = {family.name: family for family in QueryCacheCollector(cache).collect()}
        assert told["ragcache_query_cache_lookups"].samples[0].value == 1
        assert told["ragcache_query_cache_shared_skipped"].samples[0].value == 0
        assert told["ragcache_query_cache_shared_owed"].samples[0].value == 0

    def test_sync_and_async_go_together(self) -> None:
        methods = {
            name: value
            for name, value in inspect.getmembers(RedisQueryCache, inspect.isfunction)
            if not name.startswith("_")
        }
        waiting = {
            name for name in methods if f"a{name}" in methods or not name.startswith("a")
        } - IMMEDIATE
        assert set(methods) == waiting | {f"a{name}" for name in waiting} | IMMEDIATE
        for name in waiting:
            parameters = [inspect.signature(methods[one]).parameters for one in (name, f"a{name}")]
            assert parameters[0] == parameters[1], name
            assert inspect.iscoroutinefunction(methods[f"a{name}"])

    async def test_coroutines_do_the_same_and_block_nothing(self, server: RedisServer) -> None:
        shelf = Shelf()
        cache = shelf.cache(server)
        query = queries(1)[0]
        assert await cache.alookup(query, 3) is None  # connects, imports
        with blockbuster_ctx():
            version = cache.store_version
            assert await cache.ainsert(query, shelf.search(query, 12), store_version=version)
            assert ids(await cache.alookup(query, 3)) == shelf.store.ranked(query)[:3]
            assert (await cache.aexplain(query, 3)).hit
            await asyncio.gather(*(cache.alookup(near(query, 0.2, n), 3) for n in range(30)))
            await cache.adocuments_added(["new"], query[None])
            assert await cache.alookup(query, 3) is None
            await cache.adocuments_removed(["new"])
            await cache.adocuments_updated(["id 1"])
            assert await cache.alookup(query, 3) is None  # hears of that
            assert await cache.ainsert(query, shelf.search(query, 12))
            assert await cache.adelete(query)
            await cache.aclear()
            await cache.aclose()
        assert cache.stats().failed == cache.stats().skipped == cache.stats().owed == 0

    def test_event_loops_follow_each_other(self, server: RedisServer) -> None:
        shelf = Shelf()
        cache = shelf.cache(server)
        query = queries(1)[0]
        shelf.ask(cache, query)

        async def look() -> Hit[str] | None:
            hit = await cache.alookup(query, 3)
            await cache.aclose()
            return hit

        for _ in range(3):
            assert asyncio.run(look()) is not None
