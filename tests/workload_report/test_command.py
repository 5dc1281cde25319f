"""``ragcache profile --workload``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ragcache_integrations.cli import command as cli
from ragcache_integrations.engine.machine import device_name
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel, profile_path
from ragcache_workbench.workload_report.run import characterise_workload


def test_the_command(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.html"
    arguments = ["profile", "--workload", str(log), "--report", str(report), "--json"]

    assert cli.main(arguments) == 0
    output = capsys.readouterr().out
    assert output.startswith("Caching pays here: ")
    assert "Caching pays here: " in report.read_text(encoding="utf-8")
    assert json.loads(output.splitlines()[-1])["requests"] == 200


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--report", "report.html"], "--report shows a workload"),
        (["--requests-per-day", "9"], "--requests-per-day belongs to a workload"),
        (["--workload", "LOG", "--requests-per-day", "0"], "requests_per_day must be"),
        (["--workload", "none.jsonl"], "cannot read the workload none.jsonl"),
        (["--workload", "LOG", "--report", "/no/such/folder/r.html"], "--report must name a file"),
        (["--workload", "LOG", "--repeats", "3"], "--repeats would measure a model"),
        (
            ["--workload", "LOG", "--max-tokens", "9", "--output", "o.json"],
            "--max-tokens and --output would measure a model",
        ),
        (["--workload", "LOG", "./no-model"], "no model at './no-model'"),
        (["--workload", "LOG", " "], "no model at ' '"),
    ],
)
def test_errors_are_one_line(
    log: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(log) if argument == "LOG" else argument for argument in arguments]

    assert cli.main(["profile", *given]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_the_stored_profile_of_the_model_is_used(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(default_model_path())
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path))
    before = characterise_workload(log, model)
    profile = PrefillCostModel((0, 100_000), (1, 100_000), ((1.0, 2.0), (1.0, 2.0)))
    profile.save(profile_path(model, device_name()))
    after = characterise_workload(log, model)

    assert f"{model} was not profiled here yet." in before.origins[0]
    assert after.origins[0] == f"Prefill times are those measured for {model} on {device_name()}."
    assert after.result.prefill.cached[0] == pytest.approx(1.0, abs=0.01)
    assert before.result.prefill != after.result.prefill


def test_a_models_name_may_be_a_relative_path(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(default_model_path().parent)
    assert (
        str(default_model_path())
        in characterise_workload(log, default_model_path().name).origins[0]
    )
    with pytest.raises(ConfigurationError, match="no model at"):
        characterise_workload(log, "~/no-such-folder")
