"""The notebooks and scripts of examples/. The notebooks themselves are run by nbmake."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import tomllib
from pathlib import Path

import httpx
import nbformat
import pytest

from tests.support.programs import run_program

from .test_tools import tool

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
SERVICE = EXAMPLES / "fastapi_service.py"
SCRIPTS = sorted({*EXAMPLES.glob("*.py")} - {SERVICE})
MOST_LINES = 40

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def sources(path: Path, kind: str) -> list[str]:
    return [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == kind]


def test_there_are_nine_notebooks_and_three_scripts() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{number:02}" for number in range(1, 10)]
    assert SERVICE.is_file()
    assert [path.name for path in SCRIPTS] == ["langchain_chain.py", "llama_index_query.py"]


@each_notebook
def test_a_notebook_is_valid_and_holds_nothing_of_a_run(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    # nbformat would make up ids where the file has none.
    assert ids == [cell["id"] for cell in json.loads(text)["cells"]]
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", one) for one in ids), "ids in words stay"
    assert tool("strip_notebooks").stripped(text) == text, "python tools/strip_notebooks.py"


def test_stripping_removes_what_a_run_leaves_behind() -> None:
    text = NOTEBOOKS[0].read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    notebook.metadata["widgets"] = {}
    for cell in notebook.cells:
        cell.metadata["execution"] = {"took": 1}
        if cell.cell_type == "code":
            cell.execution_count = 7
            cell.outputs = [nbformat.v4.new_output("stream", text="noise")]
    strip = tool("strip_notebooks").stripped
    assert "noise" in nbformat.writes(notebook)
    assert strip(nbformat.writes(notebook)) == text


@each_notebook
def test_a_notebook_says_first_what_to_install_and_what_the_model_is(path: Path) -> None:
    first = sources(path, "markdown")[0]
    assert nbformat.read(path, 4).cells[0].source == first
    assert first.startswith("# ")
    assert "random weights" in first
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (extras,) = re.findall(r"pip install .*'\.\[(.+?)\]'", first)
    assert {*extras.split(",")} <= {*pyproject["project"]["optional-dependencies"]}
    assert ("./workbench" in first) == ("eval" in extras.split(","))
    assert ("./minilm" in first) == bool({"embeddings", "eval"} & {*extras.split(",")})
    assert "ragcache install-engine" in first
    code = "\n".join(sources(path, "code"))
    assert ("./modular" in first) == ('engine="modular"' in code or "ragcache_modular" in code)


@each_notebook
def test_a_notebook_shows_what_happens_when_something_goes_wrong(path: Path) -> None:
    assert any("## When something goes wrong" in text for text in sources(path, "markdown"))


@each_notebook
def test_the_links_of_a_notebook_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", "\n".join(sources(path, "markdown")))
    assert links
    for link in links:
        assert (EXAMPLES / link).is_file(), link


def test_every_example_is_on_the_page_of_examples() -> None:
    page = (ROOT / "docs/examples.md").read_text(encoding="utf-8")
    for path in (*NOTEBOOKS, *SCRIPTS, SERVICE):
        assert f"](../examples/{path.name})" in page, path.name


@pytest.mark.engine
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_short_and_runs(path: Path, tmp_path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    # One of them as users run it: it and its engine load everything.
    done = run_program(path, folder=tmp_path, anew=path == SCRIPTS[0])
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "0 hits so far" in first
    assert "1 hits so far" in second
    assert not list(tmp_path.iterdir())


@pytest.mark.engine
async def test_the_service_answers_20_users_at_once_and_mixes_none_up() -> None:
    """Each user's second question is a hit of their own, and all answers are those of one alone."""
    app = runpy.run_path(str(SERVICE))["app"]
    transport = httpx.ASGITransport(app)
    question = {"question": "who got the first nobel prize in physics"}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://service", timeout=300) as client,
    ):

        async def ask(user: str) -> str:
            answer = await client.get("/answer", params=question, headers={"X-User": user})
            assert answer.status_code == 200
            return answer.text

        assert (await client.get("/answer", params=question)).status_code == 422
        before = (await client.get("/stats")).json()
        users = [f"user {number}" for number in range(20)]
        answers = [*await asyncio.gather(*map(ask, users)), *await asyncio.gather(*map(ask, users))]
        after = (await client.get("/stats")).json()
    assert len({*answers}) == 1
    assert answers[0]
    assert after["questions"] - before["questions"] == 40
    assert after["searches"] - before["searches"] == 20
