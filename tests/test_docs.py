"""What README.md and docs/ name exists: commands, options, files, links, classes, knobs."""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from papers.run import make_parser

from ragcache_integrations.cli.command import _parser
from ragcache_integrations.retrievers.stores import LANGCHAIN_KINDS, LLAMA_INDEX_KINDS
from tests.support.doc_pages import ROOT, Span, blocks, pages

PACKAGES = (
    *(ROOT / "ragcache_integrations", ROOT / "modular" / "ragcache_modular"),
    ROOT / "workbench" / "ragcache_workbench",
)
CLASS = re.compile(r"(?<![\w.\"'])([A-Z][a-z]+(?:[A-Z]+[a-z]*)+|[A-Z]+[a-z]+[A-Z]\w+)\b")
TEST = re.compile(r"tests/[\w/]+\.py(?:::\w+)+")
PROGRAMS = {"ragcache", "make", "python", "pip"}
SHELLS = ("sh", "bash", "console")
# Scripts' results keep the commands of their day; the changelog names what was.
RECORDS = {
    "docs/changelog.md",
    *(page.relative_to(ROOT).as_posix() for page in (ROOT / "docs" / "benchmarks").glob("*.md")),
}
MODULES = (
    *("ragcache_integrations", "ragcache_integrations.langchain"),
    *("ragcache_integrations.llama_index", "ragcache_integrations.engine"),
    *("ragcache_integrations.query_cache", "ragcache_integrations.vector_search"),
    *("ragcache_integrations.speculation", "ragcache_integrations.knowledge_tree"),
    *("ragcache_integrations.prompts", "ragcache_integrations.adaptive"),
    *("ragcache_integrations.resources", "ragcache_integrations.errors"),
    *("ragcache_integrations.embeddings", "ragcache_workbench.evaluation"),
    "ragcache_modular",
)
# Other projects' names that the pages use.
THEIRS = {
    *("AgentWorkflow", "AttributeError", "ChatMemoryBuffer", "ChatOpenAI", "ChatPromptTemplate"),
    *("CondensePlusContextChatEngine", "CondenseQuestionChatEngine", "RunnableWithMessageHistory"),
    *("CachePolicy", "CitationQueryEngine", "ContextChatEngine", "EngineArgs", "FunctionAgent"),
    *(
        "FunctionCallingLLM",
        "InMemoryCache",
        "InMemoryVectorStore",
        "KillMode",
        "LongContextReorder",
    ),
    # Kinds of FAISS indexes.
    *("IndexFlat", "IndexHNSWFlat", "IndexIVF", "RemapDimensions", "ScalarQuantizer"),
    *("MetadataFilters", "PrefixCacheAffinityRouter"),
    *("NaN", "NotImplementedError", "OpenAILike", "RedisChatMessageHistory", "SemanticCache"),
    *("ProviderStrategy", "QueryBundle", "ReActAgent", "RetrieverQueryEngine", "RetrieverTool"),
    *("ThinkingBlock", "ToolMessage", "ToolStrategy", "TripClick"),
    "SessionId",
    *("SimpleVectorStore", "TimeoutStopSec", "TypedDict", "ValueError", "VectorStoreIndex"),
    # Vector stores.
    *(
        name.rpartition(".")[2]
        for kind in (*LANGCHAIN_KINDS, *LLAMA_INDEX_KINDS)
        for name in kind.classes
    ),
}
THEIR_KNOBS = {
    "as_query_engine",
    "as_structured_llm",
    "exclude_tags",
    "filters",
    "max_conns",
    "prefix_cache_retention_interval",
    "prompt_cache_key",
    "response_synthesizer",
}


def python_files() -> Iterator[Path]:
    """Our source."""
    for package in PACKAGES:
        yield from package.rglob("*.py")


@cache
def public() -> frozenset[str]:
    """Every public name."""
    return frozenset(name for module in MODULES for name in importlib.import_module(module).__all__)


@cache
def words() -> frozenset[str]:
    """What our source defines: classes, functions, their arguments, attributes."""
    found: set[str] = set()
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                    found.add(name)
                case ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                    found.add(name)
                case ast.AnnAssign(target=ast.Name(id=name)) | ast.keyword(arg=str(name)):
                    found.add(name)
                case ast.Attribute(attr=name):
                    found.add(name)
                case _:
                    pass
    return frozenset(found)


@cache
def commands() -> list[Span]:
    """Every command on the pages: lines for a shell, and inline code that begins like one."""
    found = []
    for block in blocks(*SHELLS):
        joined = block.text.replace("\\\n", " ")
        for offset, line in enumerate(joined.splitlines()):
            found.append(Span(block.page, block.line + offset, line.removeprefix("$ ").strip()))
    for page in pages():
        found += page.spans
    return found


def named(program: str) -> Iterator[tuple[Span, list[str]]]:
    """The commands of a program, with their arguments."""
    for span in commands():
        try:
            parts = shlex.split(span.text, comments=True)
        except ValueError:
            continue  # no command
        if parts and parts[0] == program:
            yield span, parts[1:]


def where(span: Span) -> str:
    return f"{span.page}:{span.line}: {span.text}"


def flags(arguments: list[str]) -> list[str]:
    return [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]


# Commands


def test_the_targets_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    found = set()
    for span, arguments in named("make"):
        (target, *variables) = arguments
        assert target in known, where(span)
        names = [variable.partition("=")[0] for variable in variables]
        assert all(f"$({name})" in makefile for name in names), where(span)
        found.add(target)
    assert {"demo", "test", "setup", "docs", "bench"} <= found


def subparsers() -> dict[str, argparse.ArgumentParser]:
    (action,) = (
        action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    return dict(action.choices)


@cache
def vllm_options() -> frozenset[str]:
    """The options of ``vllm serve``, read from its source: importing it takes long."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    home = Path(spec.submodule_search_locations[0])
    sources = (
        "engine/arg_utils.py",
        "entrypoints/launchers/cli_args.py",
        "entrypoints/serve/cli_args.py",
    )
    fields = {
        node.target.id
        for source in sources
        if (home / source).exists()
        for node in ast.walk(ast.parse((home / source).read_text(encoding="utf-8")))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    options = {f"--{name.replace('_', '-')}" for name in fields}
    return frozenset(options | {option.replace("--", "--no-", 1) for option in options})


def test_our_commands_and_their_options_exist() -> None:
    known = subparsers()
    found = set()
    for span, arguments in named("ragcache"):
        if not arguments or arguments[0].isupper():
            continue  # of the program as such
        if arguments[0].startswith("-"):
            assert arguments[0] in _parser()._option_string_actions, where(span)
            continue
        assert arguments[0] in known, where(span)
        parser = known[arguments[0]]
        options = set(parser._option_string_actions)
        if parser.get_default("takes_more"):
            options |= vllm_options()
        assert set(flags(arguments)) <= options, where(span)
        found.add(arguments[0])
    assert found >= set(known), "a command that no page names"


def options_of(script: Path) -> set[str]:
    """The options of a script, without running it."""
    return {
        argument.value
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "add_argument"
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


def test_the_scripts_and_their_options_exist() -> None:
    found = set()
    for span, (script, *arguments) in named("python"):
        path = ROOT / script
        assert path.is_file(), where(span)
        text = path.read_text(encoding="utf-8")
        if script.startswith("benchmarks/"):
            found.add(path.stem)
            # The papers' experiments have options of `ragcache eval`, too.
            is_papers = path.parent.name == "papers"
            known = make_parser()._option_string_actions if is_papers else options_of(path)
            assert set(flags(arguments)) <= {*known, "--help"}, where(span)
            if "--only" in arguments:
                only = arguments[arguments.index("--only") + 1]
                assert f'"{only}"' in text, where(span)
        else:
            # What the parts for a GPU have in common reads their command lines.
            text += (ROOT / "tools" / "gpu" / "setting.py").read_text(encoding="utf-8")
            assert all(flag in text for flag in flags(arguments)), where(span)
    assert found


def test_the_extras_exist() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = {*pyproject["project"]["optional-dependencies"]}
    for program in ("pip", "uv"):
        for span, arguments in named(program):
            for argument in arguments:
                asked = re.search(r"^(?:\.|ragcache-integrations)\[(.+)\]$", argument)
                if asked:
                    assert set(asked[1].split(",")) <= extras, where(span)


# Files and links


def test_the_files_it_names_exist() -> None:
    found = 0
    folders = "tools|tests|benchmarks|docs|requirements|ragcache_integrations|modular|workbench"
    pattern = rf"(?:{folders})/[\w./*-]*[\w/]"
    for page in pages():
        for span in page.spans:
            for name in re.findall(rf"(?<![\w./]){pattern}", span.text):
                assert (ROOT / name).exists(), where(span)
                found += 1
    assert found


def test_the_files_of_the_table_of_changes_exist() -> None:
    page = (ROOT / "docs/contributing.md").read_text(encoding="utf-8")
    _, _, table = page.partition("\n| change | place |\n")
    rows = table.partition("\n\n")[0].splitlines()[1:]
    folders = [ROOT / name for name in ("", "ragcache_integrations", "workbench", "modular")]
    wrong, found = [], 0
    for row in rows:
        for name in re.findall(r"`([\w./]+(?:/|\.\w+))`", row.split("|")[2]):
            found += 1
            # A name alone would be looked for.
            known = "/" in name or name == "pyproject.toml"
            if not known or not any((folder / name).exists() for folder in folders):
                wrong.append(name)
    assert found >= len(rows)
    assert not wrong


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_tests_it_names_exist() -> None:
    named = {(name, where(span)) for span in inline() for name in TEST.findall(span.text)}
    assert named
    for name, place in named:
        file, *parts = name.split("::")
        body: list[ast.stmt] = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        for part in parts:
            kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            inner = [one for one in body if isinstance(one, kinds) and one.name == part]
            assert inner, f"{place}: there is no {name}"
            body = inner[0].body


def test_the_links_between_the_pages_lead_somewhere() -> None:
    found = 0
    for page in pages():
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", "\n".join(page.prose)):
            if "://" in target:
                continue
            here = ROOT / page.name
            path = here.parent / target if target else here
            assert path.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(path), f"{page.name}: {target}#{anchor}"
            found += 1
    assert found


# Names


def test_what_is_imported_from_us_exists() -> None:
    found = 0
    for block in blocks("python", "diff"):
        text = re.sub(r"^[+ ]", "", block.text, flags=re.MULTILINE)
        pattern = r"^from (ragcache_integrations[\w.]*) import (?:\(([^)]+)\)|([^(\n]+))$"
        for module, many, few in re.findall(pattern, text, re.MULTILINE):
            for name in re.split(r",\s*", (many or few).strip().rstrip(",")):
                assert name in importlib.import_module(module).__all__, (
                    f"{block.page}:{block.line}: {module} has no {name}"
                )
                found += 1
    assert found


def inline() -> list[Span]:
    """Inline code that is no command."""
    return [span for page in pages() if page.name not in RECORDS for span in page.spans]


def test_dotted_names_of_ours_exist() -> None:
    found = 0
    for span in inline():
        match = re.fullmatch(r"(ragcache_integrations(?:\.\w+)*)(?:\(.*\))?", span.text)
        if match is None:
            continue
        parts, rest = match[1].split("."), list[str]()
        while importlib.util.find_spec(".".join(parts)) is None:
            rest.insert(0, parts.pop())
        value = importlib.import_module(".".join(parts))
        for name in rest:
            value = getattr(value, name)
        found += 1
    assert found


def test_classes_are_ours_or_known_to_be_others() -> None:
    named = [
        (name, span)
        for span in inline()
        for name in CLASS.findall(TEST.sub("", span.text))
        if not re.search(rf"[-/]{name}|{name}[-/]", span.text)  # a header or a path
    ]
    assert named
    missing = {name: where(span) for name, span in named if name not in public() | THEIRS | words()}
    assert not missing


def test_knobs_and_methods_exist() -> None:
    named = [
        (name, span)
        for span in inline()
        if span.text.split()[0] not in PROGRAMS
        for pattern in (r"(?:^|[(,] ?)([a-z]\w*)=", r"^[a-z_]+\.([a-z]\w*)\(")
        for name in re.findall(pattern, span.text)
    ]
    assert named
    missing = {name: where(span) for name, span in named if name not in words() | THEIR_KNOBS}
    assert not missing


def test_the_variables_of_the_environment_are_read() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in python_files())
    for span in inline():
        for name in re.findall(r"\bRAGCACHE_\w+", span.text):
            assert name in source, where(span)


def test_every_room_has_a_page_of_the_api() -> None:
    there = {path.stem for path in (ROOT / "docs/api").glob("*.md")}
    rooms = {"langchain", "llama_index", "errors", "modular"}
    for path in (path for package in PACKAGES for path in package.iterdir()):
        if path.name not in {"cli", "reports"} and (path / "__init__.py").is_file():
            module = importlib.import_module(f"{path.parent.name}.{path.name}")
            if getattr(module, "__all__", None):
                rooms.add(path.name)
    assert there - {"index"} == rooms


# The site


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_without_vllm(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    script = (
        "import sys; from sphinx.cmd.build import main;"
        "failed = main(['--fail-on-warning', '--keep-going', '--quiet', *sys.argv[1:]]);"
        "sys.exit(failed or ('vLLM was imported' if 'vllm' in sys.modules else 0))"
    )
    folders = ["-d", str(tmp_path / "doctrees"), str(ROOT / "docs"), str(tmp_path / "site")]
    answer = subprocess.run(
        [sys.executable, "-c", script, *folders], check=False, capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr
    for page in pages():
        name = page.name.removeprefix("docs/").removesuffix(".md")
        if page.name != "README.md":
            assert (tmp_path / "site" / f"{name}.html").is_file()
    tolerance = (tmp_path / "site/howto/tolerance.html").read_text(encoding="utf-8")
    assert "<math" in tolerance
    assert not re.search(r"<(?:script|link)[^>]+(?:src|href)=\"https?://", tolerance)
