"""Where the tokens of a schema and of its prompts stand (Prompt Cache §3.3 and §3.4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ragcache_integrations.errors import ConfigurationError, MarkupError
from ragcache_integrations.prompts.pml.compiled import CompiledSchema, Scope
from ragcache_integrations.prompts.pml.layout import Fresh, Module, Placed
from ragcache_integrations.prompts.pml.prompt import Import, Prompt
from ragcache_integrations.prompts.pml.schema import (
    Scaffold,
    Schema,
    SchemaModule,
    Slot,
    Text,
    Union,
)
from tests.support.sizes import examples

from .schemas import SCHEMAS, arguments_of, imports, served, shown, text_of, tokenizer

CITIES = """\
<schema name="cities">
  <module name="city-info">Ask for the season first of all.</module>
  <module name="trip-plan">
    A trip of <param name="duration" len="4"/> in all.
  </module>
  <module name="tokyo">Tokyo is the capital of Japan.</module>
  <module name="miami">Miami is in Florida.</module>
  <module name="paris">Paris is in France.</module>
</schema>"""


def compiled(text: str, template: str = "") -> CompiledSchema:
    return Schema.from_pml(text).compile(tokenizer(template))


def tokens(text: str) -> int:
    return len(tokenizer().encode(text, add_special_tokens=False))


def prompt(inner: str, schema: str = "cities") -> str:
    return f'<prompt schema="{schema}">{inner}</prompt>'


# The schema


def test_modules_stand_one_behind_the_other() -> None:
    cities = compiled(CITIES)
    assert cities.modules["#text"] == Module("#text", (0,), (0,))  # what begins every text
    at = 1
    names = ["city-info", "trip-plan", "tokyo", "miami", "paris"]
    for name in names:
        module = cities.modules[name]
        assert module.positions == tuple(range(at, at + len(module.token_ids)))
        at += len(module.token_ids)
    assert list(cities.modules) == ["#text", *names]
    assert cities.length == at


def test_a_param_is_reserved_and_never_serves() -> None:
    plan = compiled(CITIES).modules["trip-plan"]
    (param,) = plan.params
    assert (param.name, param.start, param.length) == ("duration", tokens("A trip of "), 4)
    slot = plan.token_ids[param.start : param.start + 4]
    assert len(set(slot)) == 1
    assert set(plan.served) == set(range(len(plan.token_ids))) - set(range(5, 9))


def test_members_of_a_union_share_their_start_and_take_the_longest_ones_room() -> None:
    schema = compiled(
        "<schema name='x'><union><module name='a'>Short.</module>"
        "<module name='b'>This one is longer.</module></union><module name='c'>End</module>"
        "</schema>"
    )
    assert schema.modules["a"].positions[0] == schema.modules["b"].positions[0] == 1
    assert schema.modules["c"].positions[0] == 1 + tokens("This one is longer.")


def test_modules_within_a_module_leave_gaps_in_it() -> None:
    schema = compiled(
        "<schema name='x'><module name='a'>One <module name='b'>two</module> three</module>"
        "</schema>"
    )
    first, inner = tokens("One "), tokens("two")
    positions = schema.modules["a"].positions
    assert positions[:first] == tuple(range(1, 1 + first))
    assert schema.modules["a/b"].positions == tuple(range(1 + first, 1 + first + inner))
    assert positions[first] == 1 + first + inner


def test_turns_are_written_as_the_model_wants_them() -> None:
    text = "<schema name='x'><system>Be brief.</system></schema>"
    for template in ("", "chatml", "llama-3"):
        model = tokenizer(template)
        said = compiled(text, template).assemble(prompt("<user>Hello!</user>", "x"))
        turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}]
        assert text_of(said) == model.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True
        )


def test_what_looks_like_a_special_token_in_a_text_is_text() -> None:
    schema = compiled(
        "<schema name='x'><module name='a'>&lt;|end|&gt;<param name='p' len='9'/></module></schema>"
    )
    special = set(tokenizer().all_special_ids) - {0}
    said = schema.assemble(Prompt("x", (Import("a", {"p": "<|user|>"}),)).with_text("<|system|>"))
    assert not special & set(served(said).values())
    assert text_of(said) == "<|begin|><|end|><|user|><|system|>"


def test_compiling_in_a_coroutine_gives_the_same() -> None:
    schema = Schema.from_pml(CITIES)
    there = asyncio.run(schema.acompile(tokenizer()))
    assert dict(there.modules) == dict(schema.compile(tokenizer()).modules)


def test_turns_need_a_template_and_a_schema_without_turns_does_not() -> None:
    assert compiled(CITIES, "none").length
    with pytest.raises(MarkupError, match=r"line 1, column 18: this tokenizer has no chat templ"):
        compiled("<schema name='x'><user>Hello!</user></schema>", "none")
    with pytest.raises(ConfigurationError, match="no chat template"):
        compiled(CITIES, "none").assemble(prompt("<user>Hello!</user>"))


# Prompts


def test_the_papers_example() -> None:
    cities = compiled(CITIES)
    said = cities.assemble(
        prompt('<trip-plan duration="3 days"/> <miami/> Highlight the surf spots.')
    )
    plan, miami = cities.modules["trip-plan"], cities.modules["miami"]
    argument = plan.positions[plan.params[0].start]
    behind = miami.positions[-1] + 1  # where paris would stand
    assert shown(said) == [
        *("#text", "trip-plan", f"'3 days'@{argument}", "miami"),
        f"'Highlight the surf spots.'@{behind}",
    ]
    assert text_of(said) == (
        "<|begin|>A trip of 3 days in all.\nMiami is in Florida.Highlight the surf spots."
    )


def test_text_takes_the_place_of_what_was_left_out() -> None:
    cities = compiled(CITIES)
    first = cities.modules["city-info"].positions[0]
    gap = cities.modules["tokyo"].positions[0]
    said = cities.assemble(prompt("Hello <trip-plan/> and <miami/> <paris/> Go."))
    assert shown(said) == [
        *("#text", f"'Hello'@{first}", "trip-plan", f"'and'@{gap}", "miami", "paris"),
        f"'Go.'@{cities.length}",
    ]


def test_text_without_room_is_refused_and_told_how_much_there_is() -> None:
    cities = compiled(CITIES)
    with pytest.raises(MarkupError, match=r"column 33: new text of 1 tokens .* at most 0 are free"):
        cities.assemble(prompt("<miami/>and<paris/> Go."))
    room = tokens("Tokyo is the capital of Japan.")
    with pytest.raises(MarkupError, match=f"at most {room} are free"):
        cities.assemble(prompt(f"<trip-plan/>{'and so on ' * 9}<miami/> Go."))


def test_text_finds_the_first_gap_that_holds_it() -> None:
    schema = compiled(
        "<schema name='x'><module name='a'>A</module><module name='b'>B</module>middle"
        "<module name='c'>one two three four</module><module name='d'>D</module></schema>"
    )
    said = schema.assemble(prompt("<a/>or<d/>End", "x"))
    assert f"'or'@{schema.modules['b'].positions[0]}" in shown(said)
    said = schema.assemble(prompt("<a/>one two<d/>End", "x"))
    assert f"'one two'@{schema.modules['c'].positions[0]}" in shown(said)


def test_text_within_an_import_stays_within_it() -> None:
    schema = compiled(
        "<schema name='x'><module name='a'>One<module name='b'>or two</module></module>"
        "<module name='c'>left out</module></schema>"
    )
    gap = schema.modules["a/b"].positions[0]
    assert f"'yes'@{gap}" in shown(schema.assemble(prompt("<a>yes</a>End", "x")))
    with pytest.raises(MarkupError, match="finds no room"):
        schema.assemble(prompt("<a>yes, and much more than that</a>End", "x"))


def test_imports_may_come_in_any_order_but_for_text_between_them() -> None:
    cities = compiled(CITIES)
    assert cities.assemble(prompt("<paris/><miami/>End")) == cities.assemble(
        prompt("<miami/><paris/>End")
    )
    with pytest.raises(MarkupError, match="comes between 'paris' and 'miami'"):
        cities.assemble(prompt("<paris/>or<miami/>End"))


def test_a_param_outside_of_modules_is_filled_by_the_prompt() -> None:
    schema = compiled("<schema name='x'>Dear <param name='who' len='6'/>, hello.</schema>")
    said = schema.assemble('<prompt schema="x" who="Ann Lee">How are you?</prompt>')
    assert text_of(said) == "<|begin|>Dear Ann Lee, hello.How are you?"


def test_an_argument_at_the_end_is_enough_to_answer_from() -> None:
    schema = compiled(
        "<schema name='x'><module name='a'>Q: <param name='q' len='9'/></module></schema>"
    )
    said = schema.assemble(prompt('<a q="Why?"/>', "x"))
    assert shown(said)[-1].startswith("'Why?'@")
    with pytest.raises(MarkupError, match="nothing to compute an answer from"):
        schema.assemble(prompt("<a/>", "x"))
    with pytest.raises(MarkupError, match="nothing to compute an answer from"):
        schema.assemble(prompt('<a q=""/>', "x"))


def test_behind_a_turn_the_model_answers_and_what_the_assistant_began_goes_on() -> None:
    schema = compiled(
        "<schema name='x'><user>Hello!<module name='a'>More.</module></user></schema>"
    )
    assert text_of(schema.assemble(prompt("<a/>", "x"))).endswith("More.<|end|><|assistant|>")
    said = schema.assemble(prompt("<assistant>Sure,</assistant>", "x"))
    assert text_of(said).endswith("<|end|><|assistant|>Sure,")
    said = schema.assemble(prompt("<assistant>Sure.</assistant><user>So?</user>", "x"))
    assert text_of(said).endswith("Sure.<|end|><|user|>So?<|end|><|assistant|>")
    assert text_of(schema.assemble(prompt("And?", "x"))).endswith("<|end|>And?")


def test_turns_of_modules_that_depend_on_each_other_are_refused() -> None:
    schema = compiled(
        "<schema name='x'><module name='a'><system>Be brief.</system></module>"
        "<module name='b'><user>Hello!</user></module></schema>",
        "llama-2",
    )
    said = schema.assemble(prompt("<a/><b/>And?", "x"))
    assert text_of(said).endswith("[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHello! [/INST]And?")
    with pytest.raises(MarkupError, match="in another way when others are left out"):
        schema.assemble(prompt("<b/>And?", "x"))


def test_members_of_a_union_have_not_heard_each_other() -> None:
    schema = compiled(
        "<schema name='x'><system>Be brief.</system><union>"
        "<module name='a'><user>Hello!</user></module>"
        "<module name='b'><user>Good day!</user></module></union></schema>",
        "llama-2",  # turns alternate there
    )
    for name, said in (("a", "Hello!"), ("b", "Good day!")):
        answered = schema.assemble(prompt(f"<{name}/><assistant>Yes,</assistant>", "x"))
        assert text_of(answered).endswith(f"<</SYS>>\n\n{said} [/INST] Yes,")
    assert schema.root.children["a"].start == schema.root.children["b"].start


def test_an_argument_knows_what_it_fills() -> None:
    schema = compiled(
        "<schema name='x'>Dear <param name='who' len='4'/>!<module name='m'>"
        "<module name='n'>In <param name='where' len='4'/>?</module></module></schema>"
    )
    said = schema.assemble('<prompt schema="x" who="Ann"><m><n where="Rome"/></m>So?</prompt>')
    fresh = [part for part in said.parts if isinstance(part, Fresh)]
    assert [part.fills for part in fresh] == ["#text", "m/n", ""]


@pytest.mark.parametrize(
    ("inner", "column", "message"),
    [
        ("<tokio/>End", 25, "the schema has no module 'tokio'; did you mean 'tokyo'?"),
        ("<miami/><miami/>End", 33, "'miami' is imported twice"),
        (
            "<trip-plan days='3'/>End",
            25,
            "'trip-plan' has no param 'days'; expected one of duration",
        ),
        ("<miami days='3'/>End", 25, "'miami' has no param 'days'; there are none"),
        ("<trip-plan duration='as long as a week lasts'/>", 25, r"has \d+ tokens; allowed: 4"),
        ("<param name='x'/>End", 25, "the schema has no module 'param'"),
        ("", 1, "nothing to compute an answer from"),
        ("<miami/>", 1, "nothing to compute an answer from"),
    ],
)
def test_a_prompt_that_does_not_conform_is_refused(inner: str, column: int, message: str) -> None:
    with pytest.raises(MarkupError, match=message) as caught:
        compiled(CITIES).assemble(prompt(inner))
    assert (caught.value.line, caught.value.column) == (1, column)


NESTED = (
    "<schema name='x'><module name='a'><union><module name='b'>B</module>"
    "<module name='c'>C</module></union></module><module name='d'>D</module></schema>"
)


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        ("<b/>End", "'b' is not a module of the schema: import it within 'a'"),
        ("<d><b/></d>End", "'b' is not a module of module 'd': import it within 'a'"),
        ("<a><d/></a>End", "'d' is not a module of module 'a': import it within the prompt itself"),
        ("<a><b/><c/></a>End", "'b' and 'c' are members of one union"),
        ("<a><e/></a>End", "module 'a' has no module 'e'; expected one of b, c"),
    ],
)
def test_imports_follow_the_schemas_nesting(inner: str, message: str) -> None:
    with pytest.raises(MarkupError, match=message):
        compiled(NESTED).assemble(prompt(inner, "x"))


def test_a_prompt_of_another_schema_is_refused() -> None:
    with pytest.raises(MarkupError, match="of schema 'towns', this is 'cities'"):
        compiled(CITIES).assemble(Prompt("towns").with_text("Hello."))


def test_a_text_that_cannot_be_tokenised_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="lone surrogate"):
        compiled(CITIES).assemble(Prompt("cities").with_text("a\ud800"))
    with pytest.raises(ConfigurationError, match="lone surrogate"):
        Schema("x", (Text("a\ud800"),)).compile(tokenizer())


# Scaffolds


def scaffolded(*scaffolds: str) -> CompiledSchema:
    marks = "".join(f"<scaffold modules='{scaffold}'/>" for scaffold in scaffolds)
    return compiled(CITIES.replace("</schema>", f"{marks}</schema>"))


def test_a_scaffold_serves_when_all_its_modules_are_there() -> None:
    cities = scaffolded("trip-plan miami")
    both = cities.assemble(prompt("<trip-plan duration='3 days'/><miami/>End"))
    assert [part.module.name for part in both.parts if isinstance(part, Placed)] == [
        *("#text", "scaffold(trip-plan miami)")
    ]
    plain = compiled(CITIES).assemble(prompt("<trip-plan duration='3 days'/><miami/>End"))
    assert served(both) == served(plain)
    one = cities.assemble(prompt("<miami/>End"))
    assert [part.module.name for part in one.parts if isinstance(part, Placed)] == [
        *("#text", "miami")
    ]


def test_a_scaffold_of_everything_is_the_whole_schema() -> None:
    cities = scaffolded("*")
    (scaffold,) = cities.scaffolds
    assert scaffold.module.positions == tuple(range(cities.length))
    (param,) = scaffold.module.params
    assert param.name == "trip-plan.duration"
    assert (
        scaffold.module.positions[param.start]
        == (cities.modules["trip-plan"].positions[cities.modules["trip-plan"].params[0].start])
    )
    said = cities.assemble(prompt("<city-info/><trip-plan/><tokyo/><miami/><paris/>End"))
    assert len(said.parts) == 2


def test_of_scaffolds_that_share_a_module_the_longest_serves() -> None:
    cities = scaffolded("tokyo miami", "tokyo miami paris", "city-info trip-plan")
    said = cities.assemble(prompt("<city-info/><trip-plan/><tokyo/><miami/><paris/>End"))
    assert shown(said)[:3] == [
        *("#text", "scaffold(city-info trip-plan)", "scaffold(tokyo miami paris)")
    ]


# At random


def walk(scope: Scope) -> list[Scope]:
    return [scope, *(one for child in scope.children.values() for one in walk(child))]


@given(schema=SCHEMAS)
@examples(40)
def test_what_stands_in_a_schema_lies_within_its_parent_and_apart(schema: Schema) -> None:
    there = schema.compile(tokenizer())
    for scope in walk(there.root):
        own = set(scope.module.positions if scope.module else ())
        assert all(scope.start <= position < scope.end for position in own)
        children = list(scope.children.values())
        for child in children:
            assert scope.start <= child.start <= child.end <= scope.end
            assert not own & set(range(child.start, child.end))
        for one in children:
            for other in children:
                if one is not other and one.union is not None and one.union == other.union:
                    assert one.start == other.start
                elif one is not other:
                    assert (
                        one.end <= other.start
                        or other.end <= one.start
                        or (one.start == one.end or other.start == other.end)
                    )
        for positions in scope.slots.values():
            assert set(positions) <= own


@given(data=st.data())
@examples(40)
def test_every_prompt_that_a_schema_allows_has_each_token_once(data: st.DataObject) -> None:
    schema = data.draw(SCHEMAS)
    there = schema.compile(tokenizer())
    arguments = data.draw(arguments_of(there.root, there))
    chosen = data.draw(imports(there.root, there))
    text = "And this is new."
    said = there.assemble(Prompt("any", chosen, arguments).with_text(text))
    by_position = served(said)  # asserts that no position is taken twice
    last = said.parts[-1]
    assert isinstance(last, Fresh)
    assert max(by_position) == last.positions[-1]
    assert text_of(said).endswith(text)
    starts = [
        (part.positions if isinstance(part, Fresh) else part.module.positions)[0]
        for part in said.parts
    ]
    assert starts == sorted(starts)
    # Modules serve all they have but their slots, and arguments leave the rest of theirs empty.
    expected: set[int] = set()
    for scope, given_arguments in imported(there.root, arguments, chosen):
        if scope.module is not None:
            expected |= {scope.module.positions[at] for at in scope.module.served}
        for name, argument in given_arguments.items():
            length = len(there.encoder.text(argument))
            expected |= set(scope.slots[name][:length])
    assert set(by_position) - set(last.positions) == expected


def imported(scope: Scope, arguments: Any, chosen: tuple[Import, ...]) -> list[tuple[Scope, Any]]:
    found = [(scope, arguments)]
    for one in chosen:
        inner = tuple(child for child in one.children if isinstance(child, Import))
        found += imported(scope.children[one.name], one.arguments, inner)
    return found


@given(
    lengths=st.lists(st.integers(1, 6), min_size=3, max_size=6),
    chosen=st.sets(st.integers(0, 5)),
    text=st.integers(1, 8),
    at=st.integers(0, 5),
)
def test_new_text_takes_the_first_free_positions_or_is_refused(
    lengths: list[int], chosen: set[int], text: int, at: int
) -> None:
    """Against the definition: try every position behind the import before the text."""
    modules = tuple(SchemaModule(f"m{n}", (Text(" a" * k),)) for n, k in enumerate(lengths))
    there = Schema("x", modules).compile(tokenizer())
    names = [f"m{n}" for n in sorted(chosen) if n < len(lengths)]
    assume(at < len(names))
    nodes: list[Any] = [Import(name) for name in names]
    said = Prompt("x", (*nodes[:at], Text(" b" * text), *nodes[at:])).with_text("End")
    scopes = there.root.children
    taken = {0} | {p for name in names for p in range(scopes[name].start, scopes[name].end)}
    first = scopes[names[at - 1]].end if at else 0
    fits = [
        start
        for start in range(first, scopes[names[at]].start - text + 1)
        if not taken & set(range(start, start + text))
    ]
    if not fits:
        with pytest.raises(MarkupError, match="finds no room"):
            there.assemble(said)
        return
    (new,) = (part for part in there.assemble(said).parts[:-1] if isinstance(part, Fresh))
    assert new.positions == tuple(range(fits[0], fits[0] + text))


def test_building_a_schema_in_python_needs_no_escaping() -> None:
    schema = Schema(
        "x",
        (
            Union((SchemaModule("a", (Text("</module>&amp;"),)), SchemaModule("b", (Text("B"),)))),
            SchemaModule("c", (Slot("p", 6),)),
        ),
        (Scaffold(("a", "c")),),
    ).compile(tokenizer())
    said = schema.assemble(Prompt("x", (Import("a"), Import("c", {"p": "<&>"}))).with_text("]]>"))
    assert text_of(said) == "<|begin|></module>&amp;<&>]]>"
