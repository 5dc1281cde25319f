"""The examples of Prompt Cache that are shipped, with the tiny model."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.prompts.pml.layout import Fresh
from ragcache_integrations.prompts.pml.schema import Schema

from .schemas import served, text_of, tokenizer

HOME = Path(__file__).parents[3] / "examples" / "pml"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(HOME / "run.py"))


def test_each_schema_and_each_prompt_has_a_partner(script: dict[str, Any]) -> None:
    for kind in ("schema", "prompt"):
        assert sorted(path.name for path in HOME.glob(f"*.{kind}.xml")) == [
            f"{name}.{kind}.xml" for name in script["EXAMPLES"]
        ]
    assert list(script["examples"]()) == list(script["EXAMPLES"])


def test_new_text_alone_is_computed(script: dict[str, Any]) -> None:
    for name, (schema, prompt) in script["examples"]().items():
        assert Schema.from_pml(schema.to_pml()) == schema
        assembly = schema.compile(tokenizer()).assemble(prompt)
        fresh = sum(len(part.token_ids) for part in assembly.parts if isinstance(part, Fresh))
        assert fresh < len(served(assembly)) / 2, name


def test_they_say_what_the_figures_do(script: dict[str, Any]) -> None:
    said = {
        name: text_of(schema.compile(tokenizer()).assemble(prompt)).splitlines()
        for name, (schema, prompt) in script["examples"]().items()
    }
    assert "The customer leaves the country" in " ".join(said["travel"])
    assert said["game"][0].endswith("<|end|># unit.py")
    assert "The learner learns best by listening and talking." in said["learner"]
    assert said["cities"][-1].endswith("<|user|>Highlight the surf spots.<|end|><|assistant|>")


@pytest.mark.engine
def test_they_run(
    script: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", str(default_model_path())])
    script["main"]()
    shown = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in shown] == list(script["examples"]())
    assert all(len(line) > 20 for line in shown)
