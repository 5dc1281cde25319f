from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ragcache_integrations.cli import doctor
from ragcache_integrations.cli.command import main
from ragcache_integrations.cli.doctor import _examined, requirements


def fail() -> str:
    msg = "no such file: libexample.so"
    raise ImportError(msg)


def test_extras_that_name_others_bring_what_these_bring() -> None:
    names = {requirement.name for requirement in requirements("all")}
    assert {"redis", "langchain-core", "llama-index-core"} <= names
    assert "ragcache-integrations" not in names


class TestAPart:
    def test_it_works(self) -> None:
        finding = _examined("Redis", "redis", lambda: "connected")
        assert finding.state == "works"
        assert finding.detail == f"redis {metadata.version('redis')}, connected"
        assert not finding.remedy

    def test_it_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor, "requirements", lambda _: iter([Requirement("no-such-thing")]))
        finding = _examined("Redis", "redis", None)
        assert finding.state == "missing"
        assert "no-such-thing" in finding.detail
        assert finding.remedy == "pip install 'ragcache-integrations[redis]'"

    def test_its_version_is_too_old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor, "requirements", lambda _: iter([Requirement("numpy>=999")]))
        finding = _examined("Redis", "redis", None)
        assert finding.state == "broken"
        assert "is not >=999" in finding.detail

    def test_a_build_for_gpus_takes_the_place_of_the_usual_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        version = metadata.version("numpy")
        monkeypatch.setattr(
            doctor, "requirements", lambda _: iter([Requirement("onnxruntime>=0.1")])
        )
        monkeypatch.setattr(doctor, "is_installed", lambda name: name == "onnxruntime-gpu")
        monkeypatch.setattr(metadata, "version", lambda _: version)
        finding = _examined("embeddings", "embeddings", None)
        assert (finding.state, finding.detail) == ("works", f"onnxruntime-gpu {version}")

    def test_it_does_not_work(self) -> None:
        finding = _examined("Redis", "redis", fail)
        assert finding.state == "broken"
        assert "libexample.so" in finding.detail


def test_the_engine_is_imported_to_see_whether_it_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so is damaged')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finding = doctor._engine()
    assert finding.state == "broken"
    assert "libtorch.so is damaged" in finding.detail
    assert finding.remedy == "ragcache install-engine"


@pytest.mark.engine
def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAGCACHE_DEFAULT_MODEL", raising=False)
    assert main(["doctor", "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    findings = {finding["part"]: finding for finding in json.loads(last)}
    assert {finding["state"] for finding in findings.values()} == {"works"}
    assert "vllm" in findings["engine"]["detail"]
    assert findings["offline embedding model"]["detail"].endswith(("on the CPU", "on the GPU"))
    assert [line.partition(": ")[0] for line in lines] == [f"ok  {part}" for part in findings]


def test_something_broken_gives_exit_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = doctor.Finding("engine", "broken", "it is", "mend it")
    monkeypatch.setattr(doctor, "examine", lambda: iter([broken]))
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out == "!!  engine: it is\n      mend it\n"
