from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.layout.layout import PromptLayout
from ragcache_integrations.prompts.lint.lint import approximate_tokens, lint_prompt
from ragcache_integrations.prompts.lint.rules import LintReport
from ragcache_integrations.resources import load_passages, load_questions
from ragcache_workbench.logs.alignment import common_runs, cutter
from ragcache_workbench.logs.requests import recorded_requests

SYSTEM = "You are a helpful assistant. Answer from the context alone, and say when it holds none."
PASSAGES = [passage.text.strip() for passage in load_passages()[:12]]
QUESTIONS = [question.text for question in load_questions()[:40]]

Write = Callable[[int, list[str], str, random.Random], Any]


def traffic(write: Write, *, requests: int = 40, seed: int = 0) -> LintReport:
    """The report about requests over three of twelve passages each."""
    rng = random.Random(seed)
    made = [
        write(n, rng.sample(PASSAGES, 3), QUESTIONS[n % len(QUESTIONS)], rng)
        for n in range(requests)
    ]
    return lint_prompt(made)


def chat(system: str, user: str, **fields: Any) -> dict[str, Any]:
    turns = [{"role": "system", "content": system}] if system else []
    return {"model": "m", "messages": [*turns, {"role": "user", "content": user}], **fields}


def context(documents: list[str], question: str) -> str:
    return "Context:\n" + "\n\n".join(documents) + f"\n\nQuestion: {question}"


WELL_MADE: dict[str, Write] = {
    "chat": lambda n, d, q, r: chat(SYSTEM, context(d, q)),
    "text": lambda n, d, q, r: f"{SYSTEM}\n\n{context(d, q)}",
    "no headings": lambda n, d, q, r: chat(SYSTEM, "\n\n".join([*d, q])),
    "time at the end": lambda n, d, q, r: chat(SYSTEM, f"{context(d, q)}\nIt is 12:{n:02d}:00."),
    "tools": lambda n, d, q, r: chat(SYSTEM, context(d, q), tools=[{"a": 1, "b": 2}]),
    "questions repeat": lambda n, d, q, r: chat(SYSTEM, context(PASSAGES[:3], QUESTIONS[n % 7])),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", WELL_MADE)
def test_nothing_is_found_in_what_is_well_made(name: str, seed: int) -> None:
    report = traffic(WELL_MADE[name], seed=seed)
    assert report.findings == ()
    assert report.requests == 40
    assert report.shared_prefix is not None
    assert 0 < report.shared_prefix < 1


TOOLS = [{"name": "search", "description": SYSTEM}, {"name": "look_up", "description": "d"}]
KEYS = ('{"name": "x", "age": 3, "city": "Rome"}', '{"age": 3, "city": "Rome", "name": "x"}')

BROKEN: dict[str, tuple[str, Write]] = {
    "time": (
        "timestamp",
        lambda n, d, q, r: chat(f"It is 2024-05-01 12:{n:02d}:11.\n{SYSTEM}", context(d, q)),
    ),
    "iso time": (
        "timestamp",
        lambda n, d, q, r: chat(f"2024-05-01T12:{n:02d}:11.5+00:00\n{SYSTEM}", context(d, q)),
    ),
    "spelt time": (
        "timestamp",
        lambda n, d, q, r: chat(
            f"Current date: Monday, May {1 + n % 28}, 2024, {n % 12}:{n:02d} PM\n{SYSTEM}",
            context(d, q),
        ),
    ),
    "uuid": (
        "random-id",
        lambda n, d, q, r: chat(
            f"Session 123e4567-e89b-12d3-a456-{r.getrandbits(48):012x}\n{SYSTEM}", context(d, q)
        ),
    ),
    "id": (
        "random-id",
        lambda n, d, q, r: chat(f"[req_{r.getrandbits(64):016x}] {SYSTEM}", context(d, q)),
    ),
    "query first": ("query-before-documents", lambda n, d, q, r: chat(SYSTEM, "\n".join([q, *d]))),
    "query first, headings": (
        "query-before-documents",
        lambda n, d, q, r: f"{SYSTEM}\nQuestion: {q}\nContext:\n" + "\n\n".join(d) + "\nAnswer:",
    ),
    "rules last": (
        "documents-before-fixed-text",
        lambda n, d, q, r: "\n\n".join([*d, SYSTEM, f"Question: {q}"]),
    ),
    "ranks": (
        "rank-in-document",
        lambda n, d, q, r: chat(
            SYSTEM, context([f"[{rank}] {text}" for rank, text in enumerate(d, 1)], q)
        ),
    ),
    "ranks in markup": (
        "rank-in-document",
        lambda n, d, q, r: chat(
            SYSTEM, context([f"<doc id='{rank}'>{text}</doc>" for rank, text in enumerate(d)], q)
        ),
    ),
    "keys": (
        "unsorted-json",
        lambda n, d, q, r: chat(f"The user: {KEYS[n % 2]}\n{SYSTEM}", context(d, q)),
    ),
    "tools": (
        "unsorted-json",
        lambda n, d, q, r: chat(SYSTEM, context(d, q), tools=TOOLS[:: 1 if n % 2 else -1]),
    ),
    "documents in JSON": (
        "unsorted-json",
        lambda n, d, q, r: chat(
            SYSTEM,
            "\n".join(
                json.dumps(dict([("text", text), ("source", "a file")][:: 1 if n % 2 else -1]))
                for text in d
            )
            + f"\n\nQuestion: {q}",
        ),
    ),
    "white space": (
        "unstable-whitespace",
        lambda n, d, q, r: chat(f"Hello there.{' ' * (1 + n % 2)}{SYSTEM}", context(d, q)),
    ),
    "user": (
        "per-user-text",
        lambda n, d, q, r: chat(
            f"You help {('Ada', 'Bob', 'Eve')[n % 3]}. {SYSTEM}", context(d, q)
        ),
    ),
    "other text": (
        "varying-text",
        lambda n, d, q, r: chat(f"Mood {'abcdefgh'[n % 8] * (n + 1)}. {SYSTEM}", context(d, q)),
    ),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", BROKEN)
def test_what_is_found(name: str, seed: int) -> None:
    code, write = BROKEN[name]
    report = traffic(write, seed=seed)
    assert report.codes == (code,)
    (finding,) = report.findings
    assert 16 <= finding.recomputed_tokens <= report.prompt_tokens
    assert finding.token < report.prompt_tokens
    assert report.recomputed_tokens >= finding.recomputed_tokens


def test_a_hostile_text_that_begins_like_a_time() -> None:
    traffic(lambda n, d, q, r: chat(SYSTEM, f"10:{n:02d} {'may.' * 60}x\n{context(d, q)}"))


def test_the_first_token_that_differs() -> None:
    (finding,) = traffic(BROKEN["time"][1]).findings
    assert finding.token == approximate_tokens("It is 2024-05-01")
    (finding,) = traffic(BROKEN["query first, headings"][1]).findings
    assert finding.token == approximate_tokens(f"{SYSTEM}\nQuestion:")
    (finding,) = traffic(BROKEN["ranks in markup"][1]).findings
    assert finding.token >= approximate_tokens(f"{SYSTEM}\nContext:")


def test_the_cost_is_what_mending_gains() -> None:
    """Within the tokens at which the documents' own order makes the difference."""
    broken = traffic(BROKEN["time"][1])
    mended = traffic(WELL_MADE["chat"])
    assert broken.shared_prefix is not None
    assert mended.shared_prefix is not None
    gained = (mended.shared_prefix - broken.shared_prefix) * mended.prompt_tokens
    assert 0 < gained <= broken.findings[0].recomputed_tokens


# Conversations

Say = Callable[[int, int, list[str]], str]


def conversations(
    system: Say,
    user: Callable[[list[str], str], str],
    kept: Callable[[list[Any]], list[Any]] = lambda history: history,
    turns: int = 10,
) -> LintReport:
    rng = random.Random(0)
    sent = []
    for talk in range(4):
        history: list[dict[str, str]] = []
        for turn in range(turns):
            documents = rng.sample(PASSAGES, 2)
            question = f"In talk {talk}, what of subject {turn} and {rng.random():.6f}?"
            messages = [
                {"role": "system", "content": system(talk, turn, documents)},
                *kept(history),
                {"role": "user", "content": user(documents, question)},
            ]
            sent.append({"messages": messages})
            answer = f"Of subject {turn} in talk {talk} one can say this: {rng.random():.6f}."
            history += [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
    return lint_prompt(sent)


def test_a_well_made_conversation() -> None:
    names = ("Ada", "Bob", "Eve", "Dan")
    assert conversations(lambda *_: SYSTEM, context).findings == ()
    named = conversations(lambda talk, *_: f"{SYSTEM} You help {names[talk]}.", context)
    assert named.findings == ()


def test_documents_or_a_clock_before_the_history() -> None:
    first = conversations(
        lambda talk, turn, d: f"{SYSTEM}\nContext:\n" + "\n\n".join(d), lambda d, q: q
    )
    assert first.codes == ("documents-before-history",)
    clock = conversations(
        lambda talk, turn, d: f"{SYSTEM}\nSystem time: 2024-05-01T12:{turn:02d}:{talk:02d}", context
    )
    assert clock.codes == ("timestamp",)


def test_histories_that_lose_their_beginning() -> None:
    def last_six(history: list[Any]) -> list[Any]:
        return history[-6:]

    def half(history: list[Any]) -> list[Any]:
        return history[max(0, len(history) // 12 - 1) * 12 :]

    assert "history-rewritten" in conversations(lambda *_: SYSTEM, context, last_six).codes
    assert conversations(lambda *_: SYSTEM, context, half, turns=24).findings == ()


def test_several_flows_in_one_log() -> None:
    rng = random.Random(0)
    sent = []
    for n in range(40):
        documents, question = rng.sample(PASSAGES, 3), QUESTIONS[n]
        sent.append(chat(SYSTEM, context(documents, question)))
        rules = "Grade what you are given from one to five, and give no reason for it at all."
        sent.append(chat(rules, "\n".join([question, *documents])))
    (finding,) = lint_prompt(sent).findings
    assert finding.code == "query-before-documents"
    assert finding.flow == "m: Grade what you ..."
    assert str(finding).startswith("m: Grade what you ...: query-before-documents at token")


# Reading requests


@pytest.mark.parametrize(
    ("entry", "system", "history", "last"),
    [
        ("Hello", "", 0, "Hello"),
        ({"prompt": "Hello", "model": "m"}, "", 0, "Hello"),
        ({"input": "Hello", "instructions": "Be brief."}, "Be brief.", 0, "Hello"),
        ({"body": {"prompt": "Hello"}}, "", 0, "Hello"),
        ([{"role": "user", "content": "Hello"}], "", 0, "Hello"),
        (
            {
                "system": [{"type": "text", "text": "Be brief."}],
                "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
            },
            "Be brief.",
            0,
            "Hello",
        ),
        (
            {
                "messages": [
                    {"role": "developer", "content": "Be"},
                    {"role": "system", "content": "brief."},
                    {"role": "user", "content": "Hello"},
                    {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
                    {"role": "tool", "content": "42"},
                    {"role": "user", "content": "And?"},
                    {"role": "assistant", "content": "Well"},
                ]
            },
            "Be\nbrief.",
            3,
            "And?",
        ),
        ({"messages": [{"role": "system", "content": "Be brief."}]}, "Be brief.", 0, ""),
    ],
)
def test_forms_of_requests(entry: Any, system: str, history: int, last: str) -> None:
    (request,) = recorded_requests(entry)
    assert (request.system, len(request.history), request.last) == (system, history, last)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (3, "request 1 must be a request's body"),
        (
            {"question": "Why?"},
            r"1 has neither messages, prompt nor input that can be read; its keys: \['quest",
        ),
        ({"messages": ["Hello"]}, "request 1: a message must be a mapping, got a str"),
        ({"messages": [{"role": "user", "content": 3}]}, "content must be text or blocks, got a i"),
    ],
)
def test_what_is_no_request(entry: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        lint_prompt([entry, entry])


# The template behind the texts

WORDS = st.lists(st.sampled_from(["a", "b", "c", "d", "e", "f", "g", "h"]), max_size=12).map(
    " ".join
)


@given(st.lists(WORDS, min_size=1, max_size=6))
def test_common_runs_stand_in_all_texts(texts: list[str]) -> None:
    runs = common_runs(texts)
    cut = cutter(runs)
    for text in texts:
        pieces = cut(text)
        assert pieces is not None
        assert "".join(pieces) == text
        assert [tuple(piece.split()) for piece in pieces[1::2]] == runs


def test_headings_are_found_whatever_a_question_shares_with_other_documents() -> None:
    texts = [
        "Who saw the end of it all?\n\nHere is the context:\nSome alpha, some beta.\n\nAnswer:",
        "Where?\n\nHere is the context:\nThen came, I saw, the end of it all?\n\nAnswer:",
    ]
    assert common_runs(texts) == [("Here", "is", "the", "context:"), ("Answer:",)]


def test_the_layouts_own_traffic_is_well_made() -> None:
    layout = PromptLayout(
        [("system", SYSTEM), ("documents", "{context}"), ("query", "Question: {question}")]
    )
    rng = random.Random(0)
    sent = []
    for question in QUESTIONS:
        values = {"context": rng.sample(PASSAGES, 3), "question": question}
        messages = layout.render(values).prompt().messages
        sent.append([{"role": message.role, "content": message.text} for message in messages])
    assert lint_prompt(sent).findings == ()


def test_questions_of_white_space_alone_are_read() -> None:
    assert lint_prompt([chat("", " "), chat("", "  ")]).codes == ()


def conversation(turn: int, *, once: bool) -> dict[str, Any]:
    """The request of a turn; every turn retrieves the same passage, and another."""
    messages: list[dict[str, str]] = [{"role": "system", "content": SYSTEM}]
    for number in range(turn + 1):
        found = [PASSAGES[0]] if not number or not once else []
        user = context([*found, PASSAGES[number + 1]], QUESTIONS[number])
        messages.append({"role": "user", "content": user})
        messages.append({"role": "assistant", "content": f"an answer {number}"})
    return {"model": "m", "messages": messages[:-1]}


def test_documents_that_a_conversation_has_already_are_found_with_their_tokens() -> None:
    report = lint_prompt([conversation(turn, once=False) for turn in range(6)])
    (finding,) = (f for f in report.findings if f.code == "repeated-document")
    again = approximate_tokens(PASSAGES[0]) * 5 / 6  # in each turn but the first
    assert 0.7 * again < finding.recomputed_tokens <= again
    assert "user" in finding.part
    said_once = lint_prompt([conversation(turn, once=True) for turn in range(6)])
    assert "repeated-document" not in said_once.codes


LANGUAGES: dict[str, tuple[str, str, str, list[str], list[str]]] = {
    "Chinese": (
        "你是旅行社的客服助手。请礼貌地回答问题，只能使用所给的文档，最多三句话，并注明所用的页码。",
        "问题：",
        "文档：",
        [
            "请问多少钱：去巴黎的团",
            "怎么预订：湖边酒店",
            "可以退吗：滑雪课程",
            "怎么预订：导游服务",
        ],
        [
            "阿尔卑斯山是欧洲最高大的山脉，横跨八个国家，最高峰是勃朗峰，海拔四千八百多米。",
            "前往湖边的旅行团每天早上八点从中央火车站的东门出发，全程大约四个小时，费用包括午餐。",
            "出发前两周可以办理全额退款，但我们会收取百分之十的手续费，出发前一周只能退一半。",
        ],
    ),
    "Japanese": (
        "あなたは旅行会社のアシスタントです。丁寧に、与えられた文書だけを使って三文以内で答えてください。",
        "質問：",
        "文書：",
        ["いくらですか：ツアー", "予約方法は：船", "払い戻せますか：ホテル", "予約方法は：ガイド"],
        [
            "アルプスはヨーロッパで最も大きな山脈で、八か国にまたがり、最高峰はモンブランです。",
            "湖へのツアーは毎朝八時に中央駅の東口から出発し、料金には昼食と船の切符が含まれます。",
            "出発の二週間前までは全額払い戻しができますが、十パーセントの手数料がかかります。",
        ],
    ),
    "Thai": (
        "คุณเป็นผู้ช่วยของบริษัททัวร์ตอบคำถามอย่างสุภาพโดยใช้เอกสารที่ให้ไว้เท่านั้นไม่เกินสามประโยค",
        "คำถาม:",
        "เอกสาร:",
        ["ทัวร์ปารีสราคาเท่าไร", "จองโรงแรมอย่างไร", "คืนเงินค่าเรียนสกีได้ไหม", "มีไกด์ไหม"],
        [
            "เทือกเขาแอลป์เป็นเทือกเขาที่ใหญ่ที่สุดในยุโรปทอดผ่านแปดประเทศและยอดเขาสูงสุดคือมงบล็อง",
            "ทัวร์ไปทะเลสาบออกเดินทางทุกเช้าเวลาแปดโมงจากสถานีรถไฟกลางราคารวมอาหารกลางวันและตั๋วเรือ",
            "สามารถขอเงินคืนเต็มจำนวนได้จนถึงสองสัปดาห์ก่อนการเดินทางแต่เราจะหักค่าธรรมเนียมร้อยละสิบ",
        ],
    ),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_scripts_without_spaces_have_words_too(language: str) -> None:
    """The question before the documents is found, and nothing where it is behind them."""
    system, asks, shows, questions, documents = LANGUAGES[language]
    rng = random.Random(5)
    requests = [(question, rng.sample(documents, 2)) for question in questions * 10]
    broken = lint_prompt(
        [chat(system, f"{asks}{q}\n{shows}\n" + "\n".join(d)) for q, d in requests]
    )
    assert "query-before-documents" in broken.codes
    assert broken.recomputed_tokens > 30
    well_made = [chat(system, f"{shows}\n" + "\n".join(d) + f"\n{asks}{q}") for q, d in requests]
    assert lint_prompt(well_made).findings == ()
