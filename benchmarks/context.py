"""What stands in the context: documents said once, beside saying them again, and ContextPilot.

Conversations about one meeting of QMSum (:mod:`parts.prompts.conversations`), in overlapping
chunks of ``--characters`` (2,000, as ``ragcache eval`` cuts QMSum), four for each question.

- ``tokens``: prompt tokens of all turns with and without ``documents_once``, and with both of
  ContextPilot's ways: its manager of conversations, which compares documents' ids, and its
  deduplication of a request, which compares blocks of lines. As a chat and as an agent's search
  results, with a history that is cut to fit the model's context, and with one that is never cut.
- ``quality``: F1 of the model's greedy answers (the bundled reader's by default) to the right ones,
  question by question on the same history; the interval draws meetings. Answers are kept in
  ``--answers``, so that a run goes on where it was stopped.
- ``repeated``: the same with Natural Questions, on conversations whose second turn finds exactly
  what the first has found, so that all that answers it is only referred to. The bundled reader
  answers these; QMSum's summaries it cannot write.
- ``ttft``: seconds to the first token of each turn but the first, with vLLM's prefix cache on for
  both; the two take turns.
- ``note``: F1 over five retrieved passages of Natural Questions in another order than relevance,
  with and without a line after them that tells the model the ranking.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.messages import BaseMessage
from parts.prompts.answer_file import Answers
from parts.prompts.contextpilot_peer import has_contextpilot
from parts.prompts.conversations import (
    Conversation,
    Kind,
    by_contextpilot,
    chat_turns,
    conversations,
    repeated_searches,
    turns_by_contextpilot,
)
from parts.prompts.rank_notes import compare_notes
from parts.stats.intervals import median_ratio
from parts.stats.tables import Cell, print_table

from ragcache_integrations.engine import Message, Prompt, RAGCacheEngine, SamplingOptions
from ragcache_integrations.engine.arguments import bundled_dtype
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_workbench.evaluation.datasets import token_f1
from ragcache_workbench.evaluation.scores import Interval, bootstrap_interval

PARTS = ("tokens", "quality", "repeated", "ttft", "note")
WITH, WITHOUT, PILOT, BLOCKS = "with", "without", "ContextPilot", "ContextPilot, blocks"
K, ORDERS = 4, 3
CONTEXT = 8192
BUDGET, UNCUT = 5400, 1_000_000
"""Tokens of a history that fits the model's context with a turn of four chunks, and of any."""
MARKUP = 5
"""Tokens of the chat template around a message."""
ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}

Turns = list[list[BaseMessage]]


BATCH = 8
"""Conversations whose turns are answered together."""


class Bench:
    """The conversations, a tokenizer, and an engine that is started when it is needed."""

    def __init__(self, options: argparse.Namespace, stack: ExitStack) -> None:
        self.options, self._stack = options, stack
        self.model = options.model or str(default_model_path())
        from transformers import AutoTokenizer  # noqa: PLC0415 - takes seconds

        tokenizer = AutoTokenizer.from_pretrained(self.model)
        self.count = cache(lambda text: len(tokenizer(text, add_special_tokens=False).input_ids))
        self._engine: RAGCacheEngine | None = None

    @cached_property
    def conversations(self) -> list[Conversation]:
        """Those of QMSum."""
        options = self.options
        data = "bundled" if options.data is None else str(options.data / "qmsum")
        orders, meetings = (1, 2) if options.quick else (ORDERS, None)
        return conversations(data, orders, K, options.characters, meetings)

    @property
    def engine(self) -> RAGCacheEngine:
        """The engine, without a knowledge tree: vLLM's own prefix cache serves a growing chat."""
        if self._engine is None:
            engine = RAGCacheEngine(
                self.model,
                kv_cache_gib=self.options.kv_cache_gib,
                knowledge_tree=False,
                max_model_len=CONTEXT,
                dtype="auto" if self.options.model else bundled_dtype(),
            )
            self._engine = self._stack.enter_context(engine)
        return self._engine

    @cached_property
    def answers(self) -> Answers:
        """Greedy answers, those of earlier runs included."""
        return Answers(lambda: self.engine, self.options.answers)

    def ways(self, conversation: Conversation, kind: Kind, budget: int) -> dict[str, Turns]:
        """The prompts of each way."""
        plain = chat_turns(conversation, kind, budget, self.count, once=False)
        ways = {WITHOUT: plain, WITH: chat_turns(conversation, kind, budget, self.count, once=True)}
        if has_contextpilot():
            ways[PILOT] = turns_by_contextpilot(conversation, kind, budget, self.count)
            ways[BLOCKS] = [by_contextpilot(prompt) for prompt in plain]
        return ways

    def length(self, prompt: Sequence[BaseMessage]) -> int:
        """Tokens of a prompt."""
        return sum(self.count(str(message.text)) + MARKUP for message in prompt)


def tokens(bench: Bench) -> dict[str, Any]:
    """Prompt tokens of all turns, by the form of the conversation and the history's budget."""
    rows: list[list[Cell]] = []
    saved: dict[str, dict[str, float]] = defaultdict(dict)
    for name, budget in (("whole", UNCUT), (f"cut at {BUDGET}", BUDGET)):
        kinds: tuple[Kind, ...] = ("chat", "agent")
        for kind in kinds:
            sums: dict[str, int] = defaultdict(int)
            for conversation in bench.conversations:
                for way, prompts in bench.ways(conversation, kind, budget).items():
                    sums[way] += sum(map(bench.length, prompts))
            shares = {way: 1 - total / sums[WITHOUT] for way, total in sums.items()}
            turns = sum(len(conversation.questions) for conversation in bench.conversations)
            rows += [[kind, name, way, total / turns, shares[way]] for way, total in sums.items()]
            saved[f"{kind}, {name}"] = {
                way: round(share, 4) for way, share in shares.items() if way != WITHOUT
            }
    count = len(bench.conversations)
    head = ["form", "history", "documents said once", "tokens a prompt", "saved"]
    print_table(f"prompt tokens of {count} conversations", head, rows)
    whole = saved["chat, whole"]
    return {
        "tokens_saved": whole[WITH],
        "tokens_saved_by_form": dict(saved),
        "contextpilot": {
            "tokens_saved": whole.get(PILOT),
            "tokens_saved_by_blocks": whole.get(BLOCKS),
        },
    }


def as_prompt(messages: Sequence[BaseMessage]) -> Prompt:
    """The engine's form of a prompt."""
    return Prompt(messages=tuple(Message(ROLES[m.type], str(m.text)) for m in messages))


def quality(bench: Bench) -> dict[str, Any]:
    """F1 of the answers to QMSum's questions."""
    return answered(bench, bench.conversations, 0)


def repeated(bench: Bench) -> dict[str, Any]:
    """F1 where all that answers is only referred to."""
    data = "bundled" if bench.options.data is None else str(bench.options.data / "nq")
    count = 4 if bench.options.quick else bench.options.questions
    return {"repeated": answered(bench, repeated_searches(data, count), 1)}


def note(bench: Bench) -> dict[str, Any]:
    """F1 with and without a note of the ranking."""
    data = "bundled" if bench.options.data is None else str(bench.options.data / "nq")
    count = 8 if bench.options.quick else bench.options.questions
    return compare_notes(data, count, bench.answers)


def answered(bench: Bench, asked: Sequence[Conversation], first: int) -> dict[str, Any]:
    """F1 of the answers by way, and the paired differences from without.

    Args:
        bench: Answers.
        asked: The conversations.
        first: The first turn that is asked.
    """
    scores: dict[str, list[float]] = defaultdict(list)
    meetings: list[int] = []
    began = time.perf_counter()
    until = began + 60 * bench.options.minutes
    for begin in range(0, len(asked), BATCH):
        if time.perf_counter() > until:
            print(f"stopped after {begin} conversations; run it again to go on")
            break
        prompts: list[Prompt] = []
        ends: list[tuple[str, str]] = []
        for conversation in asked[begin : begin + BATCH]:
            ways = bench.ways(conversation, "chat", BUDGET)
            ways.pop(BLOCKS, None)  # ContextPilot is asked in the way that saves most
            for turn, question in list(enumerate(conversation.questions))[first:]:
                prompts += [as_prompt(turns[turn]) for turns in ways.values()]
                ends += [(way, question.answer) for way in ways]
                meetings.append(conversation.meeting)
        for (way, answer), text in zip(ends, bench.answers.ask(prompts), strict=True):
            scores[way].append(token_f1(text, (answer,)))
        done = min(begin + BATCH, len(asked))
        print(f"{done} conversations, {time.perf_counter() - began:.0f} s", flush=True)
    differences = {
        way: clustered(np.subtract(found, scores[WITHOUT]), meetings)
        for way, found in scores.items()
        if way != WITHOUT
    }
    rows: list[list[Cell]] = [
        [way, len(found), statistics.fmean(found), str(differences.get(way, "-"))]
        for way, found in scores.items()
    ]
    print_table("F1", ["documents said once", "questions", "F1", "less without"], rows)
    means = {way: round(statistics.fmean(found), 4) for way, found in scores.items()}
    result: dict[str, Any] = {
        "f1": {WITH: means[WITH], WITHOUT: means[WITHOUT], "questions": len(meetings)},
        "f1_difference": differences[WITH].as_list(4),
    }
    if PILOT in means:
        difference = differences[PILOT].as_list(4)
        result["contextpilot"] = {"f1": means[PILOT], "f1_difference": difference}
    return result


def clustered(differences: np.ndarray[Any, Any], meetings: Sequence[int]) -> Interval:
    """The mean difference, with an interval that draws whole meetings."""
    numbers = np.unique(meetings)
    sums = np.array([differences[np.equal(meetings, n)].sum() for n in numbers])
    counts = np.array([np.equal(meetings, n).sum() for n in numbers], dtype=float)
    if len(numbers) == 1:
        return Interval(float(sums[0] / counts[0]), float("nan"), float("nan"))

    def mean(sums: Any, counts: Any, axis: int) -> Any:
        return sums.sum(axis=axis) / counts.sum(axis=axis)

    return bootstrap_interval(mean, [sums, counts], paired=True)


def ttft(bench: Bench) -> dict[str, Any]:
    """Seconds to the first token; every conversation begins with an empty cache."""
    seconds: dict[str, list[float]] = defaultdict(list)
    options = SamplingOptions(max_tokens=1)
    count = 1 if bench.options.quick else bench.options.timed
    for number, conversation in enumerate(bench.conversations[:count]):
        ways = bench.ways(conversation, "chat", BUDGET)
        ways.pop(BLOCKS, None)  # ContextPilot is asked in the way that saves most
        bench.engine.reset_cache()
        for turn in range(len(conversation.questions)):
            names = list(ways) if (number + turn) % 2 else list(ways)[::-1]
            for way in names:
                prompt = as_prompt(ways[way][turn])
                began = time.perf_counter()
                next(iter(bench.engine.stream(prompt, options)))
                if turn:
                    seconds[way].append(time.perf_counter() - began)
    ratios = {way: median_ratio(seconds[WITHOUT], found) for way, found in seconds.items()}
    rows: list[list[Cell]] = [
        [way, len(found), 1000 * statistics.median(found), str(ratios[way])]
        for way, found in seconds.items()
    ]
    print_table(
        "time to the first token", ["said once", "turns", "median ms", "without / it"], rows
    )
    result: dict[str, Any] = {"ttft_ratio": ratios[WITH].as_list(4)}
    if PILOT in ratios:
        result["contextpilot"] = {"ttft_ratio": ratios[PILOT].as_list(4)}
    return result


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a cut of it, in about a minute")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--data", type=Path, help="a folder of data sets; bundled if not given")
    parser.add_argument("--characters", type=int, default=2000, help="of a chunk")
    parser.add_argument("--model", help="path or hub name; the bundled reader by default")
    parser.add_argument("--answers", type=Path, help="file in which answers are kept")
    parser.add_argument("--minutes", type=float, default=1e9, help="the most for the quality")
    parser.add_argument("--timed", type=int, default=4, help="conversations for the TTFT")
    parser.add_argument("--questions", type=int, default=100, help="of Natural Questions")
    parser.add_argument("--kv-cache-gib", type=float, default=2.0)
    options = parser.parse_args()
    os.environ["RAGCACHE_DEFAULT_MODEL"] = "reader"
    measures = dict(zip(PARTS, (tokens, quality, repeated, ttft, note), strict=True))
    result: dict[str, Any] = {}
    with ExitStack() as stack:
        bench = Bench(options, stack)
        for part in options.only:
            found = measures[part](bench)
            pilot = {**result.get("contextpilot", {}), **found.pop("contextpilot", {})}
            result |= {**found, "contextpilot": pilot}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
