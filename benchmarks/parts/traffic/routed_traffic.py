"""Questions and conversations over popular documents, sent to replicas, and what came of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openai

from parts.servers.routers import Route
from parts.traffic.traces import document_stream
from ragcache_integrations.core.prompt import (
    Message,
    Prompt,
    PromptDocument,
    PromptRenderer,
    extra_args_from_spans,
)
from ragcache_integrations.llms.openai.wire import affinity_key
from ragcache_workbench.evaluation.scores import Interval, bootstrap_interval

__all__ = ["KEYS", "Ask", "Delivered", "Turn", "deliver", "hit_rate_difference", "make_turns"]

SYSTEM = "Answer from the documents, and from nothing else."
TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Turn:
    """A request of a session.

    Attributes:
        session: Whose.
        prompt: What is asked.
    """

    session: str
    prompt: Prompt


Ask = Callable[[Turn], str]
"""The affinity of a request, empty for none."""

KEYS: Mapping[str, Ask] = {
    "round robin": lambda _: "",
    "session": lambda turn: affinity_key(turn.prompt, session=turn.session),
    "document": lambda turn: affinity_key(turn.prompt),
}


def make_turns(
    texts: Mapping[str, str],
    *,
    requests: int,
    turns: int,
    top_k: int,
    exponent: float,
    sessions: int,
    seed: int,
) -> list[Turn]:
    """Requests of sessions that go on side by side.

    Args:
        texts: Documents by id; they are popular by Zipf's law, whoever asks.
        requests: How many.
        turns: Of each session. With 1 every question stands by itself, and a session is a user who
            asks again and again; with more it is a conversation: its earlier turns, documents
            included, stand before the new one.
        top_k: Documents in a turn.
        exponent: Zipf's.
        sessions: How many there are at a time.
        seed: The same seed makes the same requests.
    """
    lengths = {name: max(1, len(text)) for name, text in texts.items()}
    trace = document_stream(lengths, top_k=top_k, requests=requests, exponent=exponent, seed=seed)
    rng = np.random.default_rng([seed, 7])
    histories: list[list[Message]] = [[] for _ in range(sessions)]
    names = [f"session {number}" for number in range(sessions)]
    made = []
    for number, request in enumerate(trace.requests):
        place = int(rng.integers(sessions))
        documents = [PromptDocument(texts[name], name) for name, _ in request.documents]
        question = f"What do the documents say about the number {number}?"
        prompt = Prompt.rag(question, documents, system=SYSTEM)
        (asked,) = (message for message in prompt.messages if message.role == "user")
        history = histories[place]
        before = history or list(prompt.messages[:-1])
        prompt = Prompt(messages=(*before, asked))
        made.append(Turn(names[place], prompt))
        if turns > 1:
            said = Message("assistant", f"Of the number {number} they say nothing.")
            histories[place] = [*prompt.messages, said]
            if sum(message.role == "user" for message in prompt.messages) == turns:
                histories[place], names[place] = [], f"session {sessions + number}"
    return made


@dataclass
class Delivered:
    """What became of requests, one by one.

    Attributes:
        ttft: Seconds from arrival to the first token.
        cached: Prompt tokens found in a cache.
        prompt: Prompt tokens.
        busiest: For each run, the busiest replica's share of the requests.
    """

    ttft: list[float] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    busiest: list[float] = field(default_factory=list)

    def extend(self, other: Delivered) -> None:
        """Append another run."""
        self.ttft += other.ttft
        self.cached += other.cached
        self.prompt += other.prompt
        self.busiest += other.busiest

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens found in a cache."""
        return sum(self.cached) / sum(self.prompt)

    def milliseconds(self, share: float) -> float:
        """A quantile of the TTFT."""
        return 1e3 * float(np.quantile(self.ttft, share))


def hit_rate_difference(ours: Delivered, baseline: Delivered, seed: int = 0) -> Interval:
    """Our hit rate minus the baseline's, with a 95 % interval from drawing requests again."""
    gained = np.subtract(ours.cached, baseline.cached)
    return bootstrap_interval(
        lambda tokens, prompt, axis: tokens.sum(axis=axis) / prompt.sum(axis=axis),
        [gained, ours.prompt],
        paired=True,
        seed=seed,
    )


def deliver(
    route: Route,
    ask: Ask,
    turns: Sequence[Turn],
    renderer: PromptRenderer,
    *,
    model: str,
    output_tokens: int,
    arrivals: Sequence[float] | None = None,
    concurrency: int = 1,
) -> tuple[Delivered, float]:
    """Send requests.

    Args:
        route: How they come to a replica.
        ask: Their affinity.
        turns: What is sent, in this order.
        renderer: Makes their tokens; documents' spans travel beside them.
        model: The name under which it is served.
        output_tokens: Length of every answer.
        arrivals: Seconds after the start at which each is sent; ``None`` for the next as soon as
            one of ``concurrency`` is answered.
        concurrency: Only without ``arrivals``.

    Returns:
        What became of them, and the seconds from the first arrival to the last answer.
    """
    bodies = [_body(turn, renderer, output_tokens) for turn in turns]
    sending = _Sending(route, model)
    return asyncio.run(sending.all(turns, bodies, ask, arrivals, concurrency))


def _body(turn: Turn, renderer: PromptRenderer, output_tokens: int) -> dict[str, Any]:
    rendered = renderer.render(turn.prompt)
    spans = [(span.id, span.start, span.end) for span in rendered.documents]
    return {
        "prompt": rendered.token_ids,
        "max_tokens": output_tokens,
        "temperature": 0,
        "extra_body": {"ignore_eos": True, "vllm_xargs": extra_args_from_spans(spans)},
    }


class _Sending:
    """Clients by base URL."""

    def __init__(self, route: Route, model: str) -> None:
        self._route = route
        self._model = model
        self._clients: dict[str, openai.AsyncOpenAI] = {}

    async def all(
        self,
        turns: Sequence[Turn],
        bodies: Sequence[dict[str, Any]],
        ask: Ask,
        arrivals: Sequence[float] | None,
        concurrency: int,
    ) -> tuple[Delivered, float]:
        began = time.perf_counter()
        room = asyncio.Semaphore(concurrency if arrivals is None else len(turns))

        async def send(number: int) -> tuple[float, int, int]:
            if arrivals is None:
                async with room:
                    return await self._send(bodies[number], ask(turns[number]), None)
            due = began + arrivals[number]
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            return await self._send(bodies[number], ask(turns[number]), due)

        try:
            answers = await asyncio.gather(*map(send, range(len(turns))))
        finally:
            for client in self._clients.values():
                await client.close()
        seconds = time.perf_counter() - began
        ttft, cached, prompt = (list(column) for column in zip(*answers, strict=True))
        return Delivered(ttft, cached, prompt), seconds

    async def _send(
        self, body: dict[str, Any], key: str, due: float | None
    ) -> tuple[float, int, int]:
        began = time.perf_counter() if due is None else due
        first: float | None = None
        usage: Any = None
        with self._route(key) as (base_url, headers):
            client = self._clients.get(base_url)
            if client is None:
                client = self._clients[base_url] = openai.AsyncOpenAI(
                    base_url=base_url, api_key="none", max_retries=0, timeout=TIMEOUT_SECONDS
                )
            stream: Any = await client.completions.create(
                model=self._model,
                stream=True,
                stream_options={"include_usage": True},
                extra_headers=headers,
                **body,
            )
            async for chunk in stream:
                if first is None and chunk.choices:
                    first = time.perf_counter() - began
                usage = chunk.usage or usage
        if first is None or usage is None:
            raise RuntimeError("the server answered without a token, or without usage")
        details = usage.prompt_tokens_details
        if details is None:
            msg = "the server tells no cached tokens: --enable-prompt-tokens-details is off"
            raise RuntimeError(msg)
        return first, details.cached_tokens or 0, usage.prompt_tokens
