"""The scheduler's side of reuse anywhere: which requests, what is read, computed and stored.

vLLM writes the keys and values of all rows of a step, layer by layer, before any of them attends.
So what is computed in place are rows of the same step that share their request's blocks: one
forward pass computes links and question together (LegoLink, https://arxiv.org/abs/2410.15332), and
nothing of vLLM is changed. A row is one token longer than what is computed of it, so that vLLM
takes it for a part of a prompt and samples nothing; it is named finished in the next step.

Approximate keys and values are in a namespace of their own, which nobody can name: a secret of this
process, the tenant, where documents begin and end, and the number of link tokens are its salt. Only
whole blocks of the beginning that is exact have their usual names: of what comes before the first
document, and of documents that begin the prompt as they began one that was computed exactly.
"""

from __future__ import annotations

import itertools
import logging
import secrets
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.request import Request

from ragcache_integrations.core.checks import is_whole
from ragcache_integrations.core.prompt import ENCODE, LINK_TOKENS, Span, extra_args_from_spans
from ragcache_integrations.engine.arguments import GIB
from ragcache_integrations.engine.in_vllm.kv_cache import longest_reused, unsuited_for_reuse
from ragcache_integrations.engine.in_vllm.steps import Ahead, is_plain
from ragcache_integrations.engine.protocol import CacheSettings, document_key
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel

from .codecs import CODECS, Form
from .disk import DiskIndex
from .paged import Tables, table
from .plan import Load, Plan, make_plan
from .store import DocumentStore
from .worker import Fetch, Moves, Save

__all__ = ["Reuse", "open_reuse"]

logger = logging.getLogger(__name__)

ROWS = 64
"""Places in the worker's batch that are kept for rows."""
SHARE = 0.5
"""Largest share of a step's tokens that rows may take."""
IDLE_TOKENS = 64
"""Tokens of a step that encodes a document for later: who comes meanwhile waits for that step."""
PENDING = 256
"""Documents that wait to be encoded; of more the oldest are left out."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=1)


@dataclass(slots=True)
class _Known:
    """A request that reuses documents, or that encodes some.

    Attributes:
        spans: Its documents.
        keys: Their keys.
        link_tokens: Tokens of each that are computed; ``None`` where it encodes them.
        salt: The tenant.
        exact_until: Tokens of its beginning that are exact, whole blocks of which keep their names.
        saved: Whether its documents have been stored.
        plan: How its beginning is come by, as of the latest look at the stores.
        version: Of the stores at that time.
    """

    spans: tuple[Span, ...]
    keys: tuple[bytes, ...]
    link_tokens: int | None
    salt: str
    exact_until: int = 0
    saved: bool = False
    plan: Plan | None = None
    version: int = -1


class CachedTokens(Protocol):
    """How many tokens of a request's beginning are cached by its block hashes."""

    def __call__(self, request: Request, *, host: bool = True) -> int:
        """Count those in either tier, or on the GPU alone."""
        ...


@dataclass(eq=False)
class Reuse:
    """Requests that reuse documents anywhere.

    Attributes:
        store: What is in memory.
        scheduler: vLLM's scheduler, right after its ``__init__``. Places of its batch are kept for
            rows.
        ahead: Encodes documents for later.
        disk: What is on disk; ``None`` for no disk.
        settings: How documents are kept, and how many at the beginning of a prompt are exact all
            the same.
        longest: The most tokens of a prompt with documents that are reused, or of one and a token
            after it; ``None`` for any number.
    """

    store: DocumentStore
    scheduler: Any
    ahead: Ahead
    disk: DiskIndex | None
    settings: CacheSettings

    def __post_init__(self) -> None:
        self._codec = CODECS[self.settings.document_dtype]
        self._form = Form.of(self.scheduler.kv_cache_config)
        self._block_size: int = self.scheduler.block_size
        self.longest = longest_reused(self.scheduler.kv_cache_config)
        self._said = False
        self._budget: int = self.scheduler.max_num_scheduled_tokens
        self._most_rows = min(ROWS, self.scheduler.max_num_running_reqs // 2)
        self._most_tokens = int(SHARE * self._budget)
        self.scheduler.max_num_running_reqs -= self._most_rows
        if hasattr(self.scheduler, "max_num_active_reqs"):  # not in older versions
            self.scheduler.max_num_active_reqs = min(
                self.scheduler.max_num_active_reqs, self.scheduler.max_num_running_reqs
            )
        self._secret = secrets.token_hex(16)
        self._known: dict[str, _Known] = {}
        self._waiting: dict[str, int] = {}  # tokens of rows that each of them is thought to need
        self._rows_left = self._tokens_left = 0
        self._fetches: dict[bytes, Fetch] = {}
        self._loads: list[tuple[Load, Tables]] = []
        self._rows: list[tuple[Request, int, int, Tables]] = []
        self._drops: set[bytes] = set()
        self._counted = 0
        self._numbers = itertools.count()
        self._pending: OrderedDict[bytes, tuple[str, list[int]]] = OrderedDict()
        self._encoding: set[bytes] = set()

    def enter(
        self,
        request: Request,
        spans: tuple[Span, ...],
        arguments: Mapping[str, Any],
        cached_tokens: CachedTokens,
    ) -> bool:
        """Take a new request in, if it reuses documents or encodes them.

        It stays exact where that costs no more: where no document of it is stored, where a step has
        no room for its rows, or where the exact KV cache of its beginning leaves as little to
        compute as reuse would.

        Args:
            request: The request.
            spans: Its documents.
            arguments: Its ``extra_args``.
            cached_tokens: Returns how many tokens of a request's beginning are cached by its
                block hashes, in either tier or, with ``host=False``, on the GPU.
        """
        encodes, links = arguments.get(ENCODE), arguments.get(LINK_TOKENS)
        if not spans or not (encodes or is_whole(links)) or not is_plain(request):
            return False
        # A document comes with a token after it at least.
        if self._is_too_long(request.num_prompt_tokens + bool(encodes)):
            return False
        salt = request.cache_salt or ""
        tokens = request.prompt_token_ids
        keys = tuple(
            self._codec.key(document_key(salt, tokens[begin:end])) for _, begin, end in spans
        )
        if self.disk is not None:
            for key, (_, begin, end) in zip(keys, spans, strict=True):
                if key not in self.store:
                    self.disk.look(key, end - begin)
        known = _Known(spans, keys, None if encodes else max(0, int(links or 0)), salt)
        if encodes:
            self._separate(request, known)
        else:
            plan = self._plan(request, known)
            if not plan.loads or not self._is_cheaper(request, known, cached_tokens):
                self._pend_missing(plan, known, request)
                return False  # it is exact, and shares prefixes with others that are
            self._waiting[request.request_id] = self._plan(request, known).computed
        self._known[request.request_id] = known
        return True

    def knows(self, request: Request) -> bool:
        """Whether a request is one of these."""
        return request.request_id in self._known

    def __contains__(self, key: object) -> bool:
        return key in self.store or (self.disk is not None and key in self.disk)

    def keeps(self, key: bytes, tokens: int) -> bool:
        """Whether a document is where encoded ones are kept: on the disk, if there is one."""
        key = self._codec.key(key)
        if self.disk is None:
            return key in self.store
        self.disk.look(key, tokens)
        return key in self.disk

    def stored_tokens(self, request: Request) -> int:
        """Tokens of a waiting request that would be read."""
        known = self._known[request.request_id]
        if known.link_tokens is None:
            return 0
        return sum(load.end - load.first for load in self._plan(request, known).loads)

    def leave(self, request_ids: Iterable[str]) -> None:
        """Forget requests that have ended."""
        for name in request_ids:
            known = self._known.pop(name, None)
            self._waiting.pop(name, None)
            if known is not None and known.link_tokens is None:
                self._encoding.difference_update(known.keys)

    # A step

    def before_step(self) -> None:
        """Keep tokens of the next step for the rows of requests that wait."""
        self.encode_pending()
        self._rows_left = self._most_rows
        self._tokens_left = min(self._most_tokens, sum(self._waiting.values()))
        budget = self._budget - self._tokens_left
        if self.ahead.runs:
            budget = min(budget, IDLE_TOKENS)
        self.scheduler.max_num_scheduled_tokens = budget

    def match(self, request: Request, local: int) -> int | None:
        """Tokens after a prefix hit that are read, or computed in rows.

        Returns:
            0 if it is to be computed as any other, ``None`` if it is to be asked again in the next
            step, in which there is room for its rows.
        """
        known = self._known[request.request_id]
        if known.link_tokens is None or request.skip_reading_prefix_cache:
            return 0
        if self.disk is not None:
            for load in self._plan(request, known).loads:
                if load.key not in self.store:
                    self.disk.look(load.key, load.tokens)
        plan = self._plan(request, known)
        if not plan.loads or local >= plan.end:
            return 0
        plan = plan.after(local)
        if not self._fits(plan):
            return 0
        if plan.computed > self._tokens_left or len(plan.rows) > self._rows_left:
            self._waiting[request.request_id] = plan.computed
            return None
        self._tokens_left -= plan.computed
        self._rows_left -= len(plan.rows)
        return plan.end - local

    def admit(self, request: Request, blocks: Any, external: int) -> None:
        """A request is admitted, for which :meth:`match` has just counted these tokens."""
        known = self._known[request.request_id]
        self._waiting.pop(request.request_id, None)
        if known.link_tokens is None:
            return
        plan = self._plan(request, known)
        self._pend_missing(plan, known, request)
        if not external:
            return
        plan = plan.after(plan.end - external)
        tables = table(blocks)
        self._loads += [(load, tables) for load in plan.loads]
        self._fetch(plan.loads)
        self._rows += [(request, first, end, tables) for first, end in plan.rows]
        keys = [load.key for load in plan.loads]
        self.store.access(keys)
        if self.disk is not None:
            self.disk.access(keys)
        stats = request.prefill_stats
        if stats is not None and request.num_preemptions <= 0:
            # What is computed in rows is not cached, and usage counts are true.
            local = stats.num_local_cached_tokens
            stats.set(stats.num_prompt_tokens, local, external - plan.computed)
            self._counted += plan.computed

    def take_moves(self, plan: Any) -> Moves:
        """What the worker is to do in a step that is planned."""
        moves = Moves(list(self._fetches.values()), self._loads)
        read = {load.key for load, _ in moves.loads}
        self._fetches, self._loads = {}, []
        for name, known in self._known.items():
            count = plan.num_scheduled_tokens.get(name)
            if known.link_tokens is not None or known.saved or count is None:
                continue
            request = self.scheduler.requests[name]
            if request.num_computed_tokens + count < known.spans[-1][2]:
                continue
            known.saved = True
            blocks = table(self.scheduler.kv_cache_manager.get_blocks(name))
            for key, (_, begin, end) in zip(known.keys, known.spans, strict=True):
                stays = key not in self.store and self._keep(key, end - begin, read)
                written = (
                    self.disk is not None
                    and key not in self.disk
                    and self.disk.add(key, end - begin, read)
                )
                if stays or written:
                    moves.saves.append(Save(key, begin, end, blocks, stays, written))
                    read.add(key)
        moves.drops, self._drops = list(self._drops), set()
        return moves

    def after_step(self, plan: Any) -> None:
        """Put rows into a step that is planned."""
        self.leave(plan.finished_req_ids)
        rows, self._rows = self._rows, []
        counted, self._counted = self._counted, 0
        hits = self.scheduler.connector_prefix_cache_stats
        if hits is not None:
            hits.hits -= counted
        for request, first, end, tables in rows:
            name = f"rows.{next(self._numbers)}"
            tokens = request.prompt_token_ids[: end + 1]
            plan.scheduled_new_reqs.append(
                NewRequestData(
                    req_id=name,
                    prompt_token_ids=tokens,
                    mm_features=[],
                    sampling_params=GREEDY,
                    pooling_params=None,
                    block_ids=tuple(
                        list(numbers[: -(-end // self._block_size)]) for numbers in tables
                    ),
                    num_computed_tokens=first,
                    lora_request=None,
                    prefill_token_ids=tokens,
                )
            )
            plan.num_scheduled_tokens[name] = end - first
            plan.total_num_scheduled_tokens += end - first
            self.scheduler.finished_req_ids.add(name)

    def forget(self, keys: Collection[bytes]) -> None:
        """Documents are not in memory any more."""
        self.store.discard(keys)
        self._drops.update(keys)  # other workers may have them

    def clear(self) -> None:
        """Forget all documents in memory. What is on disk stays, as it does in a restart."""
        self._drops.update(self.store.clear())
        self._pending.clear()

    def encode_pending(self) -> None:
        """Encode a document that was missing, while there is nothing else to do."""
        while self._pending and not self.scheduler.requests:
            key, (salt, content) = self._pending.popitem(last=False)
            if key in self:
                continue
            self._encoding.add(key)
            document = ("document", 0, len(content))
            arguments = {ENCODE: 1, **extra_args_from_spans([document])}
            self.ahead.begin(
                content, salt, arguments, partial(self._put_back, key, (salt, content))
            )

    def _put_back(self, key: bytes, document: tuple[str, list[int]]) -> None:
        self._pending[key] = document
        self._pending.move_to_end(key, last=False)

    # Inside

    def _separate(self, request: Request, known: _Known) -> None:
        """Give a request the namespace of its approximate keys and values.

        The blocks of its exact beginning keep their names. The prompt's last whole block does not:
        vLLM names each block after the one before it, so that the next, which the answer fills,
        would have an exact name, too.
        """
        most = max(0, len(request.block_hashes) - 1)
        exact = request.block_hashes[: min(most, known.exact_until // self._block_size)]
        places = ",".join(f"{begin}-{end}" for _, begin, end in known.spans)
        kind = f"{known.link_tokens} {known.exact_until}"
        request.cache_salt = f"{self._secret} {kind} {places} {known.salt}"
        request.block_hashes.clear()
        request.update_block_hashes()
        request.block_hashes[: len(exact)] = exact

    def _is_cheaper(self, request: Request, known: _Known, cached_tokens: CachedTokens) -> bool:
        """Whether reuse is possible, and leaves fewer tokens to compute than the exact KV cache.

        Where exact prefixes hold documents, less than a block is no difference: they end with whole
        blocks. If reuse is cheaper, the request is in its namespace afterwards; otherwise it is as
        it was.
        """
        exact, usual, salt = cached_tokens(request), list(request.block_hashes), request.cache_salt
        begin = known.spans[0][1]
        # What comes before the first document is exact, and shared with requests that are. Beyond
        # it, what is on the GPU is taken: nothing of the host tier is read for these requests.
        exact_spans = known.spans[: self.settings.exact_documents]
        until = exact_spans[-1][2] if exact_spans else begin
        known.exact_until = max(until, cached_tokens(request, host=False))
        known.plan = None
        plan = self._plan(request, known)
        self._separate(request, known)
        left = plan.after(cached_tokens(request, host=False))
        saves = exact <= begin or plan.end - left.computed >= exact + self._block_size
        if plan.loads and saves and self._fits(left):
            return True
        request.cache_salt = salt
        request.block_hashes[:] = usual
        return False

    def _fits(self, plan: Plan) -> bool:
        """Whether a step has room for the rows of a plan."""
        return plan.computed <= self._most_tokens and len(plan.rows) <= self._most_rows

    def _plan(self, request: Request, known: _Known) -> Plan:
        """How a request's beginning is come by, planned again once a store has changed."""
        version = self.store.version + (0 if self.disk is None else self.disk.version)
        if known.plan is None or known.version != version:
            links, length = known.link_tokens or 0, request.num_prompt_tokens
            known.plan = make_plan(known.spans, known.keys, self, links, length, known.exact_until)
            known.version = version
        return known.plan

    def _fetch(self, loads: Iterable[Load]) -> None:
        """Bring documents into memory that are on the disk only."""
        reading = {load.key for load, _ in self._loads}
        for load in loads:
            if load.key not in self.store and load.key not in self._fetches:
                stays = self._keep(load.key, load.tokens, reading)
                self._fetches[load.key] = Fetch(load.key, load.tokens, stays)

    def _keep(self, key: bytes, tokens: int, reading: set[bytes]) -> bool:
        """Make room in memory for a document; ``False`` if there is none."""
        gone = self.store.add(key, self._codec.nbytes(self._form, tokens), tokens, reading)
        self._drops.update(gone or ())
        self._drops.discard(key)
        return gone is not None

    def _is_too_long(self, tokens: int) -> bool:
        """Whether a prompt is longer than a window; the first one is logged."""
        if self.longest is None or tokens <= self.longest:
            return False
        if not self._said:
            logger.warning(
                "documents of prompts that are longer than the model's window of %d tokens are not "
                "reused anywhere but computed exactly; the first such prompt has %d",
                self.longest,
                tokens,
            )
        self._said = True
        return True

    def _pend_missing(self, plan: Plan, known: _Known, request: Request) -> None:
        """Note documents that are to be encoded when there is nothing else to do."""
        for key, begin, end in plan.missing:
            tokens = request.prompt_token_ids[begin:end]
            nbytes = self._codec.nbytes(self._form, len(tokens))
            on_disk = self.disk is not None and self.disk.fits(nbytes)
            fits = nbytes <= self.store.capacity or on_disk
            fits = fits and not self._is_too_long(len(tokens) + 1)
            if key in self._encoding or not fits or len(tokens) >= self.scheduler.max_model_len:
                continue
            self._pending[key] = (known.salt, tokens)
            self._pending.move_to_end(key)
        while len(self._pending) > PENDING:
            self._pending.popitem(last=False)


def open_reuse(
    scheduler: Any,
    settings: CacheSettings,
    prefill_seconds: PrefillCostModel | None,
    ahead: Ahead,
    disk: DiskIndex | None,
) -> tuple[Reuse | None, str | None]:
    """What reuses documents anywhere, or why nothing does although that is wanted."""
    connector = scheduler.connector
    if settings.reuse != "anywhere":
        return None, None
    reason = unsuited_for_reuse(scheduler.vllm_config, scheduler.kv_cache_config)
    if reason is not None:
        logger.warning("documents are not reused anywhere but computed exactly: %s", reason)
        return None, reason
    if not hasattr(connector, "reuse"):
        return None, None
    workers = scheduler.vllm_config.parallel_config.world_size
    most = int(settings.document_cache_gib * GIB) // workers
    store = DocumentStore(most, settings.policy, prefill_seconds)
    connector.reuse = Reuse(store, scheduler, ahead, disk, settings)
    return connector.reuse, None
