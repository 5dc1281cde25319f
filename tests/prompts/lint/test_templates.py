from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.example_selectors import LengthBasedExampleSelector
from langchain_core.messages import SystemMessage
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotChatMessagePromptTemplate,
    FewShotPromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
)
from llama_index.core.prompts import ChatPromptTemplate as LlamaIndexChat
from llama_index.core.prompts import PromptTemplate as LlamaIndexPrompt
from llama_index.core.prompts import RichPromptTemplate, SelectorPromptTemplate

from ragcache_integrations import langchain, llama_index
from ragcache_integrations.errors import ConfigurationError, MissingExtraError
from ragcache_integrations.prompts.layout.layout import PARTS, Change, PromptLayout, PromptPart
from ragcache_integrations.prompts.lint import lint as lint_module
from ragcache_integrations.prompts.lint.lint import lint_prompt, matter_of
from ragcache_integrations.prompts.lint.rules import Matter, Stretch, break_findings

RULES = (
    "You are a careful assistant who answers from the context alone, in at most three sentences, "
    "and says so when the context does not hold the answer."
)
GOOD = f"{RULES}\n\n{{context}}\n\nQuestion: {{question}}"


def words(text: str) -> int:
    return len(text.split())


# The rule

KINDS: list[tuple[Matter, Change]] = [
    ("text", Change.FIXED),
    ("user", Change.CONVERSATION),
    ("history", Change.CONVERSATION),
    ("history", Change.REQUEST),
    ("documents", Change.RECURRING),
    ("documents", Change.REQUEST),
    ("query", Change.REQUEST),
    ("timestamp", Change.REQUEST),
    ("other", Change.REQUEST),
]
STRETCHES = st.builds(
    lambda kind, tokens: Stretch("x", kind[0], kind[1], tokens),
    st.sampled_from(KINDS),
    st.integers(0, 200),
)


@given(st.lists(STRETCHES, max_size=8))
def test_the_rule_counts_what_stands_behind_something_that_changes_more(
    stretches: list[Stretch],
) -> None:
    findings, recomputed = break_findings(stretches, min_tokens=1)
    blocked = {
        place
        for place, stretch in enumerate(stretches)
        if any(before.change.rank > stretch.change.rank for before in stretches[:place])
    }
    assert recomputed == sum(stretches[place].tokens for place in blocked)
    assert len(findings) == sum(
        any(later.change.rank < s.change.rank and later.tokens for later in stretches[n + 1 :])
        for n, s in enumerate(stretches)
    )
    assert all(finding.recomputed_tokens <= recomputed for finding in findings)
    ordered = sorted(stretches, key=lambda s: s.change.rank)
    assert break_findings(ordered, min_tokens=1) == ([], 0)


@given(
    order=st.permutations(list(PARTS)),
    left_out=st.sets(st.sampled_from([kind for kind in PARTS if kind != "query"])),
    flow=st.sampled_from([None, "single_turn", "conversation"]),
)
def test_nothing_is_found_in_our_own_layout(
    order: list[str], left_out: set[str], flow: Any
) -> None:
    templates = {kind: f"{{{kind}_value}}" for kind in PARTS if kind not in {"system", "tools"}}
    templates |= {"system": RULES, "tools": "none", "instructions": RULES, "examples": RULES}
    parts = [PromptPart(kind, templates[kind]) for kind in order if kind not in left_out]
    assert lint_prompt(PromptLayout(parts, flow=flow)).findings == ()


# What is found


@pytest.mark.parametrize(
    ("template", "found"),
    [
        (GOOD, []),
        (f"{{question}} {RULES}", ["query-before-fixed-text"]),
        (f"{RULES} {{question}} {{context}}", ["query-before-documents"]),
        (f"{{context}} {RULES} {{question}}", ["documents-before-fixed-text"]),
        (f"It is {{current_date}}. {GOOD}", ["timestamp"]),
        (f"Request {{request_id}}. {GOOD}", ["random-id"]),
        (f"You help {{user_name}}. {GOOD}", ["per-user-text"]),
        (f"Answer in {{style}}. {GOOD}", ["varying-text"]),
        (f"Started at 2024-05-01 12:30:00. {GOOD}", ["timestamp"]),
        (f"Today: 2024-05-01. {GOOD}", ["timestamp"]),
        (f"Your knowledge ends in 2024-05. {GOOD}", []),
        (f"Run 123e4567-e89b-12d3-a456-426614174000. {GOOD}", ["random-id"]),
        (f"{{format_instructions}} {{tools}} {GOOD}", []),
        (f"{GOOD} It is {{time}}.", []),
        (f"{RULES} {{context}} {{chat_history}} {{question}}", ["documents-before-history"]),
        (f"{RULES} {{question}} {{chat_history}}", ["query-before-history"]),
        (f"{{chat_history}} {RULES} {{question}}", ["history-before-fixed-text"]),
        (f"{RULES} {{chat_history}} {{context}} {{question}}", []),
        (f"{RULES} {{user_name}} {{chat_history}} {{context}} {{question}}", []),
        ("{context} {question}", []),
    ],
)
def test_codes(template: str, found: list[str]) -> None:
    report = lint_prompt(template)
    assert list(report.codes) == found
    assert (report.recomputed_tokens >= 16) == bool(found)


def test_where_and_at_what_cost() -> None:
    template = "one two {question} three four five {context} six"
    report = lint_prompt(template, count_tokens=words, min_tokens=2, lengths={"context": 100})
    first, second = report.findings[0], None if len(report.findings) == 1 else report.findings[1]
    assert (first.code, first.part, first.token) == ("query-before-documents", "{question}", 2)
    assert first.recomputed_tokens == 3 + 100 + 1
    assert first.behind == '"three four five", {context}, "six"'
    assert second is None  # one token of fixed text behind the documents is below min_tokens
    assert report.recomputed_tokens == 3 + 100 + 1
    assert report.prompt_tokens == 2 + 20 + 3 + 100 + 1
    assert "query-before-documents at token 2: {question}\n  104 tokens" in str(report)
    assert report.as_dict()["findings"][0]["remedy"] == first.remedy


@pytest.mark.parametrize(
    ("name", "matter"),
    [
        ("context", "documents"),
        ("context_str", "documents"),
        ("retrievedDocs", "documents"),
        ("search_results", "documents"),
        ("question", "query"),
        ("user_input", "query"),
        ("query_str", "query"),
        ("chat_history", "history"),
        ("messages", "history"),
        ("system_time", "timestamp"),
        ("today", "timestamp"),
        ("sessionId", "random_id"),
        ("user_info", "user"),
        ("tool_names", "text"),
        ("format_instructions", "text"),
        ("existing_answer", "other"),
        ("x", "other"),
    ],
)
def test_names(name: str, matter: str) -> None:
    assert matter_of(name) == matter


def test_names_that_do_not_tell_may_be_told() -> None:
    template = f"{{x}} {RULES} {{y}} {{z}}"
    assert lint_prompt(template).codes == ("varying-text",)
    told = {"x": "text", "y": "documents", "z": "query"}
    assert lint_prompt(template, variables=told).findings == ()
    told = {"x": "query", "y": "documents", "z": "text"}
    assert lint_prompt(template, variables=told).codes == (
        *("query-before-documents", "documents-before-fixed-text"),
    )


def test_the_flow_decides_about_text_of_one_user() -> None:
    template = f"{RULES} {{user_name}} {{context}} {{question}}"
    assert lint_prompt(template).codes == ("per-user-text",)
    assert lint_prompt(template, flow="conversation").findings == ()
    template = f"{RULES} {{chat_history}} {{context}} {{question}}"
    assert lint_prompt(template, flow="single_turn").codes == ("history-before-documents",)


def test_pairs_of_role_and_text() -> None:
    pairs = [("system", RULES), ("placeholder", "{turns}"), ("user", "{context}\n{question}")]
    assert lint_prompt(pairs).findings == ()
    for order in itertools.permutations(pairs):
        assert bool(lint_prompt(list(order)).findings) == (list(order) != pairs)


# The frameworks' prompts


def test_recorded_requests_need_the_workbench(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [{"prompt": "Why?"}, {"prompt": "How?"}]
    assert lint_prompt(requests).requests == 2
    monkeypatch.setattr(lint_module, "entry_points", lambda **_: ())
    with pytest.raises(MissingExtraError, match=r"linting recorded requests .*pip .*workbench"):
        lint_prompt(requests)
    assert lint_prompt("Why {date}?").requests == 0


@pytest.mark.parametrize("lint", [langchain.lint_prompt, llama_index.lint_prompt])
def test_the_adapters_take_whatever_the_core_does(lint: Any) -> None:
    assert lint(GOOD).findings == ()
    assert lint([("system", f"{{time}} {RULES}")]).codes == ("timestamp",)
    assert lint(PromptLayout([("query", "{q}")])).findings == ()


@pytest.mark.parametrize(
    ("text", "template_format"),
    [
        (f"{{question}} {RULES} {{{{braces}}}}", "f-string"),
        (f"{{{{ question }}}} {RULES}", "jinja2"),
        (f"{{{{question}}}} {RULES}", "mustache"),
    ],
)
def test_langchain_strings_of_every_format(text: str, template_format: Any) -> None:
    prompt = PromptTemplate.from_template(text, template_format=template_format)
    (finding,) = langchain.lint_prompt(prompt).findings
    assert (finding.code, finding.part) == ("query-before-fixed-text", "{question}")


def test_langchain_chat_prompts() -> None:
    turns: list[Any] = [
        SystemMessage("Hello."),
        ("system", RULES),
        MessagesPlaceholder("chat", optional=True),
        ("human", "{context} {question}"),
        MessagesPlaceholder("agent_scratchpad"),
    ]
    assert langchain.lint_prompt(ChatPromptTemplate(turns)).findings == ()
    turns.insert(0, ("system", "{now}"))
    prompt = ChatPromptTemplate(turns)
    assert langchain.lint_prompt(prompt).codes == ("timestamp",)
    assert langchain.lint_prompt(prompt.partial(now="noon")).findings == ()
    bound_to_function = langchain.lint_prompt(prompt.partial(now=lambda: "noon"))
    assert bound_to_function.codes == ("timestamp",)


def test_few_shots_that_are_chosen_anew_vary() -> None:
    example = PromptTemplate.from_template("{a} {b}")
    fixed = FewShotPromptTemplate(
        examples=[{"a": "1", "b": "2"}], example_prompt=example, suffix=f"{RULES} {{question}}"
    )
    assert langchain.lint_prompt(fixed).findings == ()
    selector = LengthBasedExampleSelector(
        examples=[{"a": "1", "b": "2"}], example_prompt=example, max_length=3
    )
    chosen = FewShotPromptTemplate(
        example_selector=selector, example_prompt=example, suffix=f"{RULES} {{question}}"
    )
    (finding,) = langchain.lint_prompt(chosen).findings
    assert (finding.code, finding.part) == ("varying-text", "{chosen_examples}")
    shots = FewShotChatMessagePromptTemplate(
        example_selector=selector,
        example_prompt=ChatPromptTemplate([("human", "{a}"), ("ai", "{b}")]),
        input_variables=["question"],
    )
    chat = ChatPromptTemplate([shots, ("system", RULES), ("human", "{question}")])
    assert langchain.lint_prompt(chat).codes == ("varying-text",)


def test_our_templates() -> None:
    knobs: dict[str, Any] = {"system": "You help {user_name}. " + RULES, "query": "{question}"}
    for kind, module in (
        (langchain.RAGPromptTemplate, langchain),
        (llama_index.RAGPromptTemplate, llama_index),
    ):
        template: Any = kind(**knobs)
        assert module.lint_prompt(template).codes == ("per-user-text",)
    bound = langchain.RAGPromptTemplate(**knobs).partial(user_name="Ada")
    assert langchain.lint_prompt(bound).findings == ()
    partial = llama_index.RAGPromptTemplate(**knobs).partial_format(user_name="Ada")
    assert llama_index.lint_prompt(partial).findings == ()


def test_llama_index_prompts() -> None:
    text = f"{{query_str}} {RULES}"
    rich = f"{{{{ query_str }}}} {RULES}"
    for prompt in (
        LlamaIndexPrompt(text),
        LlamaIndexChat.from_messages([("user", text)]),
        RichPromptTemplate(rich),
        SelectorPromptTemplate(default_template=LlamaIndexPrompt(text)),
        LlamaIndexPrompt(text, template_var_mappings={"q": "query_str"}),
        LlamaIndexPrompt(text, function_mappings={"query_str": lambda **_: 1 / 0}),
    ):
        (finding,) = llama_index.lint_prompt(prompt).findings
        assert (finding.code, finding.part) == ("query-before-fixed-text", "{query_str}")
    assert llama_index.lint_prompt(LlamaIndexPrompt(text, query_str="Why?")).findings == ()


@pytest.mark.parametrize(
    ("source", "knobs", "message"),
    [
        (GOOD, {"variables": {"nonsense": "query"}}, "unknown variable of the template 'nonsense'"),
        (GOOD, {"lengths": {"nonsense": 3}}, "unknown variable"),
        (GOOD, {"variables": {"context": "docs"}}, "matter of 'context' must be one of text, doc"),
        (GOOD, {"flow": "chat"}, "flow must be"),
        (GOOD, {"min_tokens": 0}, "min_tokens must be"),
        ("{", {}, "braces do not match"),
        (3, {}, "a template or a list of requests to lint, got a int"),
        ([], {}, "at least 2 requests, got 0"),
        (["a", "b"], {"variables": {"a": "query"}}, "traffic has no variables"),
    ],
)
def test_wrong_arguments(source: Any, knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        lint_prompt(source, **knobs)
