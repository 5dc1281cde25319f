"""Fixtures that every room's tests share."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import os
import warnings
from collections.abc import Generator, Iterator

import pytest
from jupyter_client.provisioning import local_provisioner

# Test files run beside each other, and engines with a thread per core would wait for one another's
# threads at every layer. Set before anything loads torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test needs a network. Set for all of them, since an engine is a fork only where its environment
# is that of the tests.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Mechanics are tested with the model whose answers depend on every token of a prompt.
os.environ.setdefault("RAGCACHE_DEFAULT_MODEL", "random-small")

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.process import client as _client
from ragcache_integrations.prompts.recognition import requests
from ragcache_integrations.prompts.recognition.segmentation import SEGMENTATIONS
from tests.support.programs import start_kernel
from tests.support.sizes import register_profiles
from tests.support.vllm_forks import ALIKE_ANYWAY, Forks, close_forks, engine_forks, forks

register_profiles()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Notebooks start engines, and whole ones take longer than a test may.

    They come first: at the end, one process would wait while the other runs a whole notebook.
    """
    items.sort(key=lambda item: item.path.suffix != ".ipynb")
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.timeout(900))
        elif "engine" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.engine)


def pytest_configure(config: pytest.Config) -> None:
    """Engines and notebooks start as forks. No fixture: notebooks have none of ours."""
    patch = pytest.MonkeyPatch()
    patch.setattr(_client, "start_process", engine_forks(forks, _client.start_process))
    patch.setattr(local_provisioner, "launch_kernel", start_kernel)
    config.add_cleanup(close_forks)
    config.add_cleanup(patch.undo)


def pytest_collection_finish() -> None:
    """What is there for the whole run would be looked through by each garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """``make quick`` leaves out what needs vLLM, by its marker."""
    Forks.allowed = item.get_closest_marker("engine") is not None


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Each test has a context of its own: a variable that it sets is not set in the next test.

    pytest-asyncio does the same for its tests.
    """
    test = pyfuncitem.obj
    if pyfuncitem.get_closest_marker("asyncio") is None:
        pyfuncitem.obj = functools.partial(contextvars.copy_context().run, test)
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test  # reports of failures look for its code


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Notebooks come without this file's hooks, and may follow on any test."""
    Forks.allowed = True


@pytest.fixture(scope="module", autouse=True)
def _environment_stays_as_it_was() -> Iterator[None]:
    """What a command sets for its process would stay, and no engine would be a fork any more."""
    before = dict(os.environ)
    yield
    for name in (os.environ.keys() | before.keys()) - ALIKE_ANYWAY:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]


@pytest.fixture(scope="session")
def engine() -> Iterator[RAGCacheEngine]:
    """The real engine with the tiny model, shared by the whole run.

    ``float32``: cached and uncached runs can be compared. Eager: compiling pays off over hours.
    """
    with RAGCacheEngine(
        kv_cache_gib=0.25, dtype="float32", vllm_args={"enforce_eager": True}
    ) as shared:
        yield shared


@pytest.fixture(autouse=True)
def _nothing_was_retrieved() -> None:
    """A thread's tests follow one another as a script's lines do: they would see documents."""
    requests._context.set(())
    SEGMENTATIONS.clear()


@pytest.fixture(autouse=True)
def _close_the_loop_that_llama_index_leaves(request: pytest.FixtureRequest) -> Iterator[None]:
    """LlamaIndex's sync methods make an event loop and leave it behind, unclosed."""
    yield
    if request.node.get_closest_marker("asyncio") is not None:
        return  # that loop is pytest-asyncio's
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            left = asyncio.get_event_loop_policy().get_event_loop()
        except RuntimeError:
            return  # there is none
    if not left.is_running():
        left.close()
        asyncio.set_event_loop(None)
