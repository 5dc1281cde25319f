"""Templates of every syntax are read, and none is rendered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.example_selectors import LengthBasedExampleSelector
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotPromptTemplate,
    FewShotPromptWithTemplates,
    HumanMessagePromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
)
from langchain_core.prompts.string import StringPromptTemplate
from llama_index.core.memory import memory
from llama_index.core.prompts import PromptTemplate as LlamaIndexPrompt
from llama_index.core.prompts import RichPromptTemplate, chat_prompts
from llama_index.core.query_engine import citation_query_engine

from ragcache_integrations import langchain, llama_index
from ragcache_integrations.cli import command as cli
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.lint import jinja as lint_jinja
from ragcache_integrations.prompts.lint.jinja import jinja_pieces
from ragcache_integrations.prompts.lint.lint import (
    MAX_MUSTACHE,
    Template,
    lint_prompt,
    mustache_pieces,
    pieces_of,
)

RULES = "Answer from the context alone, in at most three sentences, and say so when it is silent."


def shown(pieces: list[Any]) -> str:
    """Pieces as a text with variables in angle brackets."""
    return "".join(piece if isinstance(piece, str) else f"<{piece.name}>" for piece in pieces)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("Score {score:.2f} {name!r} {at:%H:%M} {a.b[0]}", "Score <score> <name> <at> <a>"),
        ("{value:{width}.{digits}}", "<value><width><digits>"),
        ("{{x}} {x}", "{x} <x>"),
    ],
)
def test_format_strings(template: str, expected: str) -> None:
    assert shown(pieces_of(template)) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("A {{ x }} B {# note #}{% raw %}{{ y }}{% endraw %}", "A <x> B {{ y }}"),
        ("{% for d in docs %}{{ d.text }}\n{% endfor %}Q: {{ q }}", "<docs>Q: <q>"),
        ("{% for n, d in docs.items() %}{{ n }}: {{ d }}{% endfor %}", "<docs>"),
        ("{% for d in docs %}{% for b in d.blocks %}{{ b }}{% endfor %}{% endfor %}", "<docs>"),
        ("{% for d in docs %}{{ d }} for {{ user }}{% endfor %}", "<docs><user>"),
        ("{% for n in range(3) %}x{% endfor %}", "x"),
        ("{{ docs | map(attribute='text') | join(sep) }}", "<docs><sep>"),
        ("{{ docs[0].text.strip() }}", "<docs>"),
        ("{% if x %}A {{ x }}{% else %}B{% endif %}", "A <x>"),
        ("{% if not x %}A{% else %}B {{ x }}{% endif %}", "B <x>"),
        ("{% if x is none %}A{% elif y %}B{% endif %}", "B"),
        ("{% if x is defined %}A{% endif %}", "A"),
        ("{% if x %}A{% else %}B {{ y }}{% endif %}", "A<y>"),
        ("{{ 'A ' ~ x ~ ' B' }}", "A <x> B"),
        ("{{ x if x else 'none' }}", "<x>"),
        ("{% set y = x %}{{ y }}", "<x>"),
        ("{% set y %}A {{ x }}{% endset %}{{ y }}{{ y }}", "A <x>A <x>"),
        ("{% with y = x %}{{ y }}{% endwith %}{{ y }}", "<x><y>"),
        (
            "{% macro m(a, b='B') %}{{ a }} {{ b }}{% endmacro %}{{ m(x) }}{{ m('A', b=y) }}",
            "<x> BA <y>",
        ),
        (
            "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}{{ x }}{% endcall %}",
            "[<x>]",
        ),
        ("{% macro m() %}A{{ m() }}{% endmacro %}{{ m() }}", "A"),
        (
            "{% chat role='system' %}A{% endchat %}{% chat role='user' %}{{ x }}{% endchat %}",
            "A<x>",
        ),
        ("{% generation %}A{% endgeneration %}{% filter upper %}{{ x }}{% endfilter %}", "A<x>"),
        ("{% set ns = namespace(n=0) %}{% do x.append(1) %}{{ ns.n }}A", "A"),
    ],
)
def test_jinja(template: str, expected: str) -> None:
    assert "".join(shown(jinja_pieces(template)).split("\n")) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("A {{x}} {{{y}}} {{&z.a}}{{! note }}", "A <x> <y> <z>"),
        ("{{#docs}}{{text}}, {{/docs}}Q: {{q}}", "<docs>Q: <q>"),
        ("{{#docs}}{{#parts}}{{.}}{{/parts}}{{/docs}}", "<docs>"),
        ("{{#brief}}Be brief. {{/brief}}{{^brief}}Be long. {{/brief}}Q: {{q}}", "Be brief. Q: <q>"),
        ("{{=<% %>=}}<%x%> {{y}}", "<x> {{y}}"),
    ],
)
def test_mustache(template: str, expected: str) -> None:
    assert shown(mustache_pieces(template)) == expected


@pytest.mark.parametrize(
    ("read", "template", "words"),
    [
        (jinja_pieces, "{% for d in docs %}", "cannot be read: Unexpected end of template"),
        (jinja_pieces, "{% include 'other' %}", "has an include, and no other template is read"),
        (jinja_pieces, "{{ " + "(" * 5000, "nested too deeply"),
        (jinja_pieces, "{% chat role='user' %}", "cannot be read"),
        (jinja_pieces, "{{ f(" + "9" * 5000 + ") }}", "cannot be read: .* integer"),
        (jinja_pieces, "{{ 0x" + "f" * 5000 + " }}", "cannot be read: .* integer"),
        (mustache_pieces, "{{#docs}}", "cannot be read: Unexpected EOF"),
        (mustache_pieces, "{{x", "cannot be read"),
        (mustache_pieces, "{{/docs}}", "cannot be read"),
    ],
)
def test_broken_templates(read: Any, template: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        read(template)


@pytest.mark.parametrize(
    ("read", "template"),
    [
        (jinja_pieces, "{% end" + "a" * 50_000 + " %}"),
        (mustache_pieces, "{{/" + "a" * 50_000 + "}}"),
    ],
    ids=["jinja", "mustache"],
)
def test_a_message_is_short_however_long_the_template(read: Any, template: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(template)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10**9 }}{{ 10 ** 10 ** 9 }}",
        "{% for a in range(10**9) %}{% for b in range(10**9) %}{{ x }}{% endfor %}{% endfor %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ x.__init__.__globals__ }}",
        "{{ lipsum(n=10**9) }}{% for a in cycler(1, 2) %}{{ a.next() }}{% endfor %}",
    ],
)
def test_hostile_templates_run_nothing(template: str) -> None:
    text = f"{template}{{{{ question }}}} {RULES}"
    # Not by their constructors, in which the frameworks compile a template and compute constants.
    made: dict[str, Any] = {"partial_variables": {}, "template_format": "jinja2"}
    made |= {"kwargs": {}, "template_var_mappings": None, "function_mappings": None}
    prompts: list[tuple[Any, Any]] = [
        (lint_prompt, Template(jinja_pieces(text))),
        (langchain.lint_prompt, PromptTemplate.model_construct(template=text, **made)),
        (llama_index.lint_prompt, RichPromptTemplate.model_construct(template_str=text, **made)),
    ]
    for lint, prompt in prompts:
        assert "query-before-fixed-text" in lint(prompt).codes


def test_templates_that_repeat_themselves_are_bounded() -> None:
    doubled = "{% set x = 'ab' * 2 ~ y %}" + "{% set x = x ~ x %}" * 40 + "{{ x }}"
    with pytest.raises(ConfigurationError, match="must not repeat itself so often"):
        jinja_pieces(doubled)
    macros = "".join(
        f"{{% macro m{n}() %}}{{{{ m{n - 1}() }}}}{{{{ m{n - 1}() }}}}{{% endmacro %}}"
        for n in range(1, 60)
    )
    with pytest.raises(ConfigurationError, match="must not repeat itself so often"):
        jinja_pieces("{% macro m0() %}x{% endmacro %}" + macros + "{{ m59() }}")
    with pytest.raises(ConfigurationError, match="at most 1048576 characters, got 1048577"):
        jinja_pieces("x" * (lint_jinja.MAX_TEMPLATE + 1))
    with pytest.raises(ConfigurationError, match="at most 262144 characters, got 262145"):
        mustache_pieces("x" * (MAX_MUSTACHE + 1))


def test_what_loops_write_is_linted() -> None:
    loop = f"{{% for doc in docs %}}{{{{ loop.index }}}}. {{{{ doc }}}}{{% endfor %}}{RULES}"
    for report in (
        lint_prompt(Template(jinja_pieces(loop))),
        langchain.lint_prompt(PromptTemplate.from_template(loop, template_format="jinja2")),
        llama_index.lint_prompt(RichPromptTemplate(loop)),
    ):
        assert set(report.codes) == {"rank-in-document", "documents-before-fixed-text"}
        assert report.recomputed_tokens == 1000 + report.findings[1].recomputed_tokens
    plain = f"{RULES}{{% for doc in docs %}}{{{{ doc }}}}{{% endfor %}}{{{{ question }}}}"
    assert lint_prompt(Template(jinja_pieces(plain))).findings == ()
    names = f"{RULES}{{% for name in names %}}{{{{ loop.index }}}}{{% endfor %}}"
    assert lint_prompt(Template(jinja_pieces(names))).findings == ()


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        (chat_prompts.CHAT_CONTENT_QA_PROMPT, ["documents-before-fixed-text"]),
        (chat_prompts.CHAT_CONTENT_TREE_SUMMARIZE_PROMPT, ["documents-before-fixed-text"]),
        (chat_prompts.CHAT_CONTENT_REFINE_PROMPT, []),
        (chat_prompts.CHAT_CONTENT_CHOICE_SELECT_PROMPT, ["rank-in-document"]),
        (citation_query_engine.CITATION_CHAT_CONTENT_QA_TEMPLATE, []),
        (citation_query_engine.CITATION_CHAT_CONTENT_REFINE_TEMPLATE, ["varying-text"]),
        (memory.DEFAULT_MEMORY_BLOCKS_TEMPLATE, []),
    ],
)
def test_llama_indexs_own_prompts_with_loops(prompt: Any, found: list[str]) -> None:
    assert list(llama_index.lint_prompt(prompt).codes) == found


def test_llama_indexs_braces_and_mappings() -> None:
    report = llama_index.lint_prompt(LlamaIndexPrompt(f'{{"a": 1}} {{query_str}} {RULES}'))
    assert report.codes == ("query-before-fixed-text",)
    assert report.findings[0].token > 0
    mapped = LlamaIndexPrompt(
        f"{{query_str}} {RULES}", template_var_mappings={"q": "query_str"}, q="Why?"
    )
    assert llama_index.lint_prompt(mapped).findings == ()


def test_langchains_prompts_inside_of_others() -> None:
    inner = ChatPromptTemplate.from_messages(
        [("system", RULES), MessagesPlaceholder("chat_history")]
    )
    outer = ChatPromptTemplate.from_messages([inner, ("human", "{context} {question}")])
    assert langchain.lint_prompt(outer).findings == ()
    outer = ChatPromptTemplate.from_messages([("human", "{context}"), inner])
    assert langchain.lint_prompt(outer).codes == ("documents-before-history",)


def test_langchains_formats_images_and_values() -> None:
    prompt = PromptTemplate.from_template(f"{{score:.2f}} {RULES}")
    (finding,) = langchain.lint_prompt(prompt).findings
    assert (finding.code, finding.part) == ("varying-text", "{score}")
    assert langchain.lint_prompt(prompt.partial(score="1")).findings == ()
    parts: list[Any] = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,{image}"}},
        {"type": "text", "text": RULES},
    ]
    message = HumanMessagePromptTemplate.from_template(parts)
    (finding,) = langchain.lint_prompt(ChatPromptTemplate([message])).findings
    assert finding.part == "{image}"


def test_langchains_few_shots_of_every_syntax() -> None:
    example = PromptTemplate.from_template(
        "{% for a in all %}{{ a }}{% endfor %}", template_format="jinja2"
    )
    shots: dict[str, Any] = {"examples": [{"all": ["x", "y"]}], "example_prompt": example}
    suffix = f"{RULES} {{question}}"
    fixed = FewShotPromptTemplate(**shots, suffix=suffix)
    assert langchain.lint_prompt(fixed).findings == ()
    selector = LengthBasedExampleSelector(
        examples=[{"all": ["x"]}], example_prompt=example, max_length=3
    )
    chosen = FewShotPromptWithTemplates(
        example_selector=selector,
        example_prompt=example,
        prefix=PromptTemplate.from_template("Now {time}."),
        suffix=PromptTemplate.from_template(suffix),
        input_variables=["time", "question"],
    )
    assert [finding.part for finding in langchain.lint_prompt(chosen).findings] == [
        *("{time}", "{chosen_examples}"),
    ]


class Shouted(PromptTemplate):
    """Somebody's prompt that lays its text out in another way."""

    def format(self, **values: Any) -> str:
        return f"{values['question']} {RULES}"


class Broken(StringPromptTemplate):
    """Somebody's prompt that needs real values."""

    def format(self, **values: Any) -> str:
        return f"{values['score']:.2f}"


def test_prompts_of_other_classes_are_laid_out() -> None:
    shouted = Shouted.from_template("{question}")
    assert langchain.lint_prompt(shouted).codes == ("query-before-fixed-text",)
    with pytest.raises(ConfigurationError, match="cannot be rendered without values"):
        langchain.lint_prompt(Broken(input_variables=["score"]))


def test_templates_in_files(tmp_path: Path) -> None:
    for ending, template, status in [
        *((".jinja", "{% for d in docs %}{{ d }}{% endfor %}{{ question }}", 0),),
        *((".j2", f"{{{{ question }}}} {RULES}", 1), (".j2", "{{", 2)),
        *((".mustache", f"{{{{question}}}} {RULES}", 1), (".txt", "\ufeff{context} {question}", 0)),
    ]:
        path = tmp_path / f"prompt{ending}"
        path.write_text(template, encoding="utf-8")
        assert cli.main(["lint", str(path)]) == status
