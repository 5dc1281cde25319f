"""Tokens computed over a long conversation: half truncation beside drop-oldest.

Both histories hear the same conversation, of texts cut from the bundled passages. A turn adds
the user's message, has the model give one token, and adds the reply; while the "user reads", what
the background has to do is done. Recomputed tokens are those computed for prompts, less those that
are new to the conversation; what summaries and prefills compute counts as recomputed. A reply's
text is given, so that both hear the same; its KV cache is computed with the next turn.

The engine runs one conversation. Others, with random lengths, are counted without it: a message is
cached where an earlier prompt began with the same messages (no block of it is lost).
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import PrivateAttr

from parts.stats.intervals import median_ratio
from parts.stats.tables import print_table
from ragcache_integrations.engine import Generation, RAGCacheEngine
from ragcache_integrations.langchain import ChatRAGCache
from ragcache_integrations.prompts.history.langchain import HalfTruncationHistory
from ragcache_integrations.resources import load_passages

__all__ = ["run"]

Policy = Literal["half", "oldest"]
POLICIES: tuple[Policy, ...] = ("oldest", "half")
TURNS, BUDGET = 200, 8000
QUESTION_TOKENS, REPLY_TOKENS = 60, 200
BLOCK = 32


@dataclass
class Account:
    """What a conversation cost.

    Attributes:
        on_path: Prompt tokens that turns computed.
        background: Those that summaries and prefills computed.
        new: Tokens of messages, once each.
        prompts: Length of each turn's prompt.
        ttft: Seconds of each turn to its first token.
    """

    on_path: int = 0
    background: int = 0
    new: int = 0
    prompts: list[int] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)

    @property
    def recomputed(self) -> int:
        """Tokens that were computed again."""
        return self.on_path + self.background - self.new

    def row(self) -> list[float | int | None]:
        """Cells of the table."""
        times = self.ttft or [float("nan")]
        return [
            self.recomputed,
            self.on_path,
            self.background,
            statistics.fmean(self.prompts),
            1000 * statistics.median(times) if self.ttft else None,
            1000 * float(np.percentile(times, 95)) if self.ttft else None,
        ]


HEAD = ["policy", "recomputed", "on path", "background", "mean prompt", "TTFT ms", "95 % ms"]


class CountedEngine:
    """An engine that keeps an account of what is computed, by turns and in the background."""

    def __init__(self, engine: RAGCacheEngine, account: Account) -> None:
        self._engine = engine
        self._account = account
        self._turns = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, *arguments: Any, **more: Any) -> Generation:
        """Answer, and count."""
        answer = self._engine.generate(*arguments, **more)
        computed = answer.usage.prompt_tokens - answer.usage.cached_tokens
        if threading.get_ident() == self._turns:
            self._account.on_path += computed
            self._account.prompts.append(answer.usage.prompt_tokens)
        else:
            self._account.background += computed
        return answer


class PrefixModel(BaseChatModel):
    """Answers nothing of interest, and counts what an unlimited prefix cache would compute."""

    _account: Account = PrivateAttr()
    _turns: int = PrivateAttr()
    _known: set[int] = PrivateAttr(default_factory=set)

    def __init__(self, account: Account) -> None:
        super().__init__()
        self._account = account
        self._turns = threading.get_ident()

    @property
    def _llm_type(self) -> str:
        return "prefix-model"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 - as in the base class
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002 - likewise
        **kwargs: Any,
    ) -> ChatResult:
        computed, total, path = 0, 0, 0
        for message in messages:
            path = hash((path, message.type, str(message.text)))
            tokens = count_words(str(message.text)) + 4
            computed += 0 if path in self._known else tokens
            total += tokens
            self._known.add(path)
        if threading.get_ident() == self._turns:
            self._account.on_path += computed
            self._account.prompts.append(total)
        else:
            self._account.background += computed
        text = f"{len(self._known)} " * kwargs.get("max_tokens", 1)  # no two summaries are alike
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])


def count_words(text: str) -> int:
    """Count words, where no tokenizer matters."""
    return len(text.split())


def words() -> Iterator[str]:
    """Words of real text, without end."""
    return itertools.cycle(" ".join(passage.text for passage in load_passages()).split())


def conversation(lengths: Sequence[tuple[int, int]]) -> Iterator[tuple[str, str]]:
    """Questions and replies of so many words; a number in front keeps each unlike the others."""
    source = words()
    for number, (asked, replied) in enumerate(lengths):
        question = [f"{number}:", *itertools.islice(source, asked - 1)]
        yield " ".join(question), " ".join(itertools.islice(source, replied))


def hold(
    history: HalfTruncationHistory,
    llm: BaseChatModel,
    account: Account,
    lengths: Sequence[tuple[int, int]],
) -> None:
    """Go through a conversation."""
    for question, reply in conversation(lengths):
        history.add_messages([HumanMessage(question)])
        prompt = history.messages
        began = time.perf_counter()
        llm.invoke(prompt, max_tokens=1)
        account.ttft.append(time.perf_counter() - began)
        history.add_messages([AIMessage(reply)])
        history.settle()


def counted(policy: Policy, budget: int, lengths: Sequence[tuple[int, int]]) -> Account:
    """A conversation without an engine."""
    account = Account()
    llm = PrefixModel(account)
    history = HalfTruncationHistory(budget, llm=llm, count_tokens=count_words, policy=policy)
    hold(history, llm, account, lengths)
    account.ttft.clear()
    account.new = sum(asked + replied + 8 for asked, replied in lengths) - lengths[-1][1] - 4
    return account


def served(
    engine: RAGCacheEngine,
    policy: Policy,
    budget: int,
    lengths: Sequence[tuple[int, int]],
    summary_tokens: int,
) -> Account:
    """A conversation on the engine, whose cache is emptied first."""
    account = Account()
    while not engine.reset_cache():
        time.sleep(0.01)
    llm = ChatRAGCache(engine=CountedEngine(engine, account), find_documents=False)
    history = HalfTruncationHistory(budget, llm=llm, policy=policy, summary_tokens=summary_tokens)
    hold(history, llm, account, lengths)
    said = [*history.get_all()][:-1]  # nobody asked anything after the last reply
    account.new = sum(len(engine.tokenize(str(message.text))) + 2 for message in said)
    return account


def random_lengths(seed: int, turns: int) -> list[tuple[int, int]]:
    """Lengths between half and one and a half times the usual ones."""
    rng = np.random.default_rng(seed)

    def draw(usual: int) -> list[int]:
        return [int(n) for n in rng.integers(usual // 2, usual * 3 // 2, size=turns)]

    return list(zip(draw(QUESTION_TOKENS), draw(REPLY_TOKENS), strict=True))


def run(
    quick: bool = False, engine: RAGCacheEngine | None = None, *, timed: bool = True
) -> dict[str, Any]:
    """Measure, and print tables.

    Args:
        quick: A shorter conversation on the engine.
        engine: One to use; its own where ``None``.
        timed: Whether its times say anything.

    Returns:
        ``history_recompute_ratio`` (200 turns, 8,000 tokens, fixed lengths, counted), its range
        over seeds, mean prompts, and the engine's figures.
    """
    usual = [(QUESTION_TOKENS, REPLY_TOKENS)] * TURNS
    accounts = {policy: counted(policy, BUDGET, usual) for policy in POLICIES}
    rows = [[policy, *account.row()] for policy, account in accounts.items()]
    print_table(f"{TURNS} turns, budget {BUDGET} tokens, counted", HEAD, rows)
    ratios = []
    for seed in range(1 if quick else 10):
        drawn = random_lengths(seed, TURNS)
        oldest, half = (counted(policy, BUDGET, drawn).recomputed for policy in POLICIES)
        ratios.append(half / oldest)
    turns, budget, summary_tokens = (24, 1500, 32) if quick else (TURNS, 7800, 256)
    # Words are up to two tokens in the default model's vocabulary.
    lengths = [(QUESTION_TOKENS // 2, REPLY_TOKENS // 2)] * turns
    own = engine is None
    used = engine or RAGCacheEngine(vllm_args={"block_size": BLOCK})
    try:
        on_engine = {
            policy: served(used, policy, budget, lengths, summary_tokens) for policy in POLICIES
        }
    finally:
        if own:
            used.close()
    ttft = median_ratio(on_engine["oldest"].ttft, on_engine["half"].ttft) if timed else None
    for account in on_engine.values() if ttft is None else ():
        account.ttft.clear()
    rows = [[policy, *account.row()] for policy, account in on_engine.items()]
    print_table(f"{turns} turns, budget {budget} tokens, on the engine", HEAD, rows)
    if ttft is not None:
        print(f"TTFT, oldest over half: {ttft}")
    return {
        "history_recompute_ratio": round(
            accounts["half"].recomputed / accounts["oldest"].recomputed, 4
        ),
        "history_recompute_ratio_random_lengths": [round(min(ratios), 4), round(max(ratios), 4)],
        "history_mean_prompt": {
            policy: round(statistics.fmean(account.prompts)) for policy, account in accounts.items()
        },
        "history_engine": {
            "turns": turns,
            "budget": budget,
            "recompute_ratio": round(
                on_engine["half"].recomputed / on_engine["oldest"].recomputed, 4
            ),
            "mean_prompt": {
                policy: round(statistics.fmean(account.prompts))
                for policy, account in on_engine.items()
            },
            "ttft_ratio": None if ttft is None else ttft.as_list(4),
        },
    }
