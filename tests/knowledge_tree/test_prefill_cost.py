from __future__ import annotations

import itertools
import json
import logging
import math
import pickle
import threading
from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.prefill_cost import (
    DEFAULT_FORMULA,
    PrefillCostModel,
    PrefillFormula,
    load_profile,
    profile_path,
)

SMALL = PrefillCostModel([0, 100], [10, 20, 40], [[1.0, 2.0, 4.0], [3.0, 4.0, 6.0]])


@st.composite
def models(draw: st.DrawFn) -> PrefillCostModel:
    def axis(smallest: int) -> list[int]:
        numbers = st.integers(smallest, 1 << 17)
        return sorted(draw(st.lists(numbers, min_size=2, max_size=6, unique=True)))

    cached, new = axis(0), axis(1)
    times = st.lists(st.floats(0, 1e6), min_size=len(new), max_size=len(new))
    rows = draw(st.lists(times, min_size=len(cached), max_size=len(cached)))
    return PrefillCostModel(cached, new, rows)


@given(models())
def test_the_grid_is_met_at_its_nodes(model: PrefillCostModel) -> None:
    for cached, row in zip(model.cached_tokens, model.seconds, strict=True):
        for new, seconds in zip(model.new_tokens, row, strict=True):
            assert model(cached, new) == pytest.approx(seconds, rel=1e-12, abs=1e-9)


@given(models(), st.data())
def test_inside_it_is_bilinear_and_between_the_corners(
    model: PrefillCostModel, data: st.DataObject
) -> None:
    cached = data.draw(st.integers(model.cached_tokens[0], model.cached_tokens[-1]))
    new = data.draw(st.integers(model.new_tokens[0], model.new_tokens[-1]))
    time = model(cached, new)
    # NumPy interpolates along one axis, then along the other: the same by definition.
    columns = [
        np.interp(cached, model.cached_tokens, column)
        for column in zip(*model.seconds, strict=True)
    ]
    expected = np.interp(new, model.new_tokens, columns)
    assert time == pytest.approx(expected, rel=1e-9, abs=1e-9)

    row = min(bisect_right(model.cached_tokens, cached), len(model.cached_tokens) - 1)
    column = min(bisect_right(model.new_tokens, new), len(model.new_tokens) - 1)
    corners = [model.seconds[row - a][column - b] for a in (0, 1) for b in (0, 1)]
    slack = 1e-9 * max(corners)
    assert min(corners) - slack <= time <= max(corners) + slack


@given(models(), st.integers(0, 1 << 20), st.integers(0, 1 << 20))
def test_it_is_finite_and_never_below_the_smallest_time(
    model: PrefillCostModel, cached: int, new: int
) -> None:
    time = model(cached, new)
    assert math.isfinite(time)
    inside = (
        model.cached_tokens[0] <= cached <= model.cached_tokens[-1]
        and model.new_tokens[0] <= new <= model.new_tokens[-1]
    )
    positive = [seconds for row in model.seconds for seconds in row if seconds > 0]
    assert time >= (-1e-9 if inside else min(positive, default=0))
    assert model.per_token(cached, new) == time / max(new, 1)


def test_beyond_the_grid_the_last_cell_goes_on() -> None:
    assert SMALL(0, 80) == pytest.approx(8)
    assert SMALL(200, 10) == pytest.approx(5)
    assert SMALL(200, 80) == pytest.approx(12)
    falling = PrefillCostModel([0, 1], [1, 2], [[4.0, 3.0], [2.0, 1.0]])
    assert falling(100, 100) == 1


def test_nothing_new_counts_as_one_token() -> None:
    assert SMALL(0, 0) == SMALL(0, 1) == 1  # not below the smallest time
    assert SMALL(100, 0) == SMALL(100, 1) == pytest.approx(2.1)
    assert SMALL.per_token(100, 0) == SMALL(100, 1)
    assert SMALL.per_token(100, 20) == pytest.approx(4 / 20)


@pytest.mark.parametrize("tokens", [(-1, 5), (5, -1)])
def test_negative_numbers_of_tokens_are_refused(tokens: tuple[int, int]) -> None:
    with pytest.raises(ConfigurationError, match="at least 0"):
        SMALL(*tokens)


@pytest.mark.parametrize(
    ("cached", "new", "seconds", "words"),
    [
        ([0], [1, 2], [[1, 2]], "cached_tokens must be at least two rising"),
        ([0, 0], [1, 2], [[1, 2], [1, 2]], "cached_tokens must be at least two rising"),
        ([5, 2], [1, 2], [[1, 2], [1, 2]], "cached_tokens must be at least two rising"),
        ([-1, 2], [1, 2], [[1, 2], [1, 2]], "from 0"),
        ([0, 2], [0, 2], [[1, 2], [1, 2]], "from 1"),
        ([0, 2.5], [1, 2], [[1, 2], [1, 2]], "whole numbers"),
        (None, [1, 2], [[1, 2], [1, 2]], "whole numbers"),
        ([0, 1], [1, 2], [[1, 2]], "2 rows of 2"),
        ([0, 1], [1, 2], [[1, 2], [1]], "2 rows of 2"),
        ([0, 1], [1, 2], [[1, 2], [1, -1]], "finite and not negative"),
        ([0, 1], [1, 2], [[1, 2], [1, math.nan]], "finite and not negative"),
        ([0, 1], [1, 2], [[1, 2], [1, math.inf]], "finite and not negative"),
        ([0, 1], [1, 2], [[1, 2], [1, 10**400]], "rows of numbers"),
        ([0, 1], [1, 2], [[1, 2], [1, "2"]], "rows of numbers"),
        ([0, 1], [1, 2], 7, "rows of numbers"),
    ],
)
def test_a_grid_that_is_none_is_refused(cached: Any, new: Any, seconds: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        PrefillCostModel(cached, new, seconds)


def test_it_is_immutable_and_equal_by_value() -> None:
    rows = [[1.0, 2.0], [3.0, 4.0]]
    model = PrefillCostModel(np.array([0, 10]), [1, 2], np.array(rows))  # type: ignore[arg-type] # arrays serve as well
    rows[0][0] = 9
    assert model == PrefillCostModel([0, 10], [1, 2], [[1, 2], [3, 4]])
    assert hash(model) == hash(PrefillCostModel([0, 10], [1, 2], [[1, 2], [3, 4]]))
    assert model != SMALL
    with pytest.raises(AttributeError):
        model.seconds = ()  # type: ignore[misc] # that is what is tested


@given(models())
def test_it_survives_pickle_and_json(model: PrefillCostModel) -> None:
    for copy in (
        pickle.loads(pickle.dumps(model)),
        PrefillCostModel.from_dict(json.loads(json.dumps(model.as_dict()))),
    ):
        assert copy == model
        assert copy(3, 7) == model(3, 7)


# The formula


@given(
    st.tuples(*[st.one_of(st.just(0.0), st.floats(1e-3, 10)) for _ in range(3)]).filter(any),
    st.lists(
        st.tuples(st.integers(0, 1000), st.integers(1, 1000)), min_size=6, max_size=30, unique=True
    ).filter(lambda points: len({new for _, new in points}) > 2),
)
def test_a_fit_finds_the_formula_that_made_the_samples(
    coefficients: tuple[float, float, float], points: list[tuple[int, int]]
) -> None:
    formula = PrefillFormula(coefficients[0], coefficients[1] / 100, coefficients[2] / 1e5)
    fitted = PrefillFormula.fit([(*point, formula(*point)) for point in points])
    for point in points:
        assert fitted(*point) == pytest.approx(formula(*point), rel=1e-6)


@given(
    st.lists(
        st.tuples(st.integers(0, 5000), st.integers(1, 5000), st.floats(1e-4, 10)),
        min_size=3,
        max_size=20,
        unique_by=lambda sample: sample[1],
    )
)
def test_a_fit_is_optimal_under_its_bound(samples: list[tuple[int, int, float]]) -> None:
    """The Karush-Kuhn-Tucker conditions of non-negative least squares."""
    formula = PrefillFormula.fit(samples)
    solution = np.array([formula.overhead, formula.per_token, formula.per_pair])
    assert (solution >= 0).all()
    cached, new, seconds = np.array(samples, dtype=float).T
    design = np.stack([np.ones_like(new), new, (2 * cached + new) * new]).T / seconds[:, None]
    scales = np.linalg.norm(design, axis=0)
    slopes = (design.T @ (design @ solution - 1)) / scales
    size = np.sqrt(len(samples))
    assert (slopes >= -1e-6 * size).all()
    assert np.abs(slopes[solution > 0]).max() <= 1e-6 * size


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([], "at least 3"),
        ([(0, 1, 1.0), (0, 2, 1.0)], "at least 3"),
        ([(0, 1, 1.0)] * 5, "at least 3"),
        ([(0, 1, 1.0), (1, 1, 1.0), (2, 1, 1.0)], "2 different numbers"),
        ([(0, 1, 1.0), (1, 2, 1.0), (2, 3, 0.0)], "a sample must be"),
        ([(0, 0, 1.0), (1, 2, 1.0), (2, 3, 1.0)], "a sample must be"),
        ([(-1, 1, 1.0), (1, 2, 1.0), (2, 3, 1.0)], "a sample must be"),
        ([(0, 1, math.nan), (1, 2, 1.0), (2, 3, 1.0)], "a sample must be"),
        ([(0, 1), (1, 2), (2, 3)], "a sample must be"),
        ([1, 2, 3], "a sample must be"),
        ([("a", "b", "c")] * 3, "a sample must be"),
    ],
)
def test_samples_that_say_too_little_are_refused(samples: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        PrefillFormula.fit(samples)


@given(st.integers(0, 1 << 20), st.integers(1, 1 << 18))
def test_the_grid_of_a_formula_is_close_to_it(cached: int, new: int) -> None:
    """A chord over neighbours that are 1.5 times apart exceeds a square by at most a 24th."""
    model = PrefillCostModel.from_formula(DEFAULT_FORMULA)
    exact = DEFAULT_FORMULA(cached, new)
    assert exact * (1 - 1e-9) <= model(cached, new) <= exact * (1 + 1 / 24)


def test_a_few_measurements_make_a_grid() -> None:
    samples = [(0, 100, 0.11), (0, 400, 0.41), (800, 100, 0.11)]
    model = PrefillCostModel.fit(samples)
    for cached, new, seconds in samples:
        assert model(cached, new) == pytest.approx(seconds, rel=0.05)


def test_the_default_is_plausible() -> None:
    model = PrefillCostModel.default()
    # RAGCache §3, figure 2: a 7B model on an A10G reaches one second beyond 4,000 tokens.
    assert 0.7 < model(0, 4000) < 1.3
    for low, high in itertools.pairwise((1, 10, 100, 1000, 10_000)):
        assert model(0, low) < model(0, high)
        assert model(low, 50) < model(high, 50)
        assert model.per_token(0, low) > model.per_token(0, high) or low >= 1000


# Files


def test_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "made" / "on the way" / "profile.json"
    SMALL.save(path)
    assert PrefillCostModel.load(path) == SMALL
    assert [entry.name for entry in path.parent.iterdir()] == ["profile.json"]
    PrefillCostModel.default().save(str(path))
    assert PrefillCostModel.load(str(path)) == PrefillCostModel.default()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "damaged"),
        (b"\xff\xfe\x00", "damaged"),
        (b"[" * 100_000, "damaged"),
        (b"[]", "no prefill profile"),
        (b'{"format": "other"}', "no prefill profile"),
        (b'{"format": "ragcache-prefill-cost", "version": 2}', "version 2, this release reads 1"),
        (b'{"format": "ragcache-prefill-cost"}', "version None"),
        (
            b'{"format": "ragcache-prefill-cost", "version": 1, "seconds": []}',
            "cached_tokens, new_tokens is missing",
        ),
        (json.dumps(SMALL.as_dict() | {"seconds": [[1, 2]]}).encode(), "rows of 3"),
        (json.dumps(SMALL.as_dict() | {"new_tokens": [3, 2, 1]}).encode(), "rising"),
        (json.dumps(SMALL.as_dict()).encode()[:-5], "damaged"),
        (json.dumps(SMALL.as_dict()).replace("6.0", "NaN").encode(), "finite"),
    ],
)
def test_damaged_and_foreign_files(
    content: bytes, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = profile_path("model", "device", tmp_path)
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=words) as caught:
        PrefillCostModel.load(path)
    assert str(path) in str(caught.value)
    with caplog.at_level(logging.WARNING):
        assert load_profile("model", "device", tmp_path) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(path) in caplog.text


@given(st.binary(max_size=40), st.integers(0, 200))
def test_no_damage_goes_unnoticed_or_breaks_the_reader(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, where: int
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "profile.json"
    SMALL.save(path)
    content = path.read_bytes()
    path.write_bytes(content[:where] + noise + content[where + len(noise) :])
    try:
        loaded = PrefillCostModel.load(path)
    except ConfigurationError:
        return
    assert loaded(50, 15) >= 0  # other numbers, but a model


def test_places_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot write the prefill profile"):
        SMALL.save(tmp_path / "file" / "profile.json")
    with pytest.raises(ConfigurationError, match="cannot write the prefill profile"):
        SMALL.save(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    with pytest.raises(ConfigurationError, match="No such file"):
        PrefillCostModel.load(tmp_path / "missing.json")


def test_readers_see_a_whole_file_while_others_write(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    grids = [SMALL, PrefillCostModel.default()]
    grids[0].save(path)
    failures: list[Exception] = []
    writing = threading.Event()
    writing.set()

    def write(model: PrefillCostModel) -> None:
        try:
            for _ in range(100):
                model.save(path)
        except Exception as error:
            failures.append(error)

    def read() -> None:
        try:
            while writing.is_set():
                assert PrefillCostModel.load(path) in grids
        except (Exception, AssertionError) as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(model,)) for model in grids]
    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in (*writers, *readers):
        thread.start()
    for thread in writers:
        thread.join()
    writing.clear()
    for thread in readers:
        thread.join()
    assert failures == []
    assert [entry.name for entry in tmp_path.iterdir()] == ["profile.json"]


@pytest.mark.parametrize(
    ("model", "readable"),
    [
        ("mistralai/Mistral-7B-v0.1", "Mistral-7B-v0-1"),
        ("/models/my model", "my-model"),
        ("../..", "unnamed"),
        ("模型", "unnamed"),
        ("a" * 500, "a" * 60),
    ],
)
def test_the_name_of_a_profile(model: str, readable: str, tmp_path: Path) -> None:
    path = profile_path(model, "cpu-AMD EPYC 7R32 (64)/2", tmp_path)
    assert path.parent == tmp_path
    assert path.name.startswith(f"{readable}--cpu-AMD-EPYC-7R32-64-2-")
    assert path.suffix == ".json"
    SMALL.save(path)
    assert load_profile(model, "cpu-AMD EPYC 7R32 (64)/2", tmp_path) == SMALL


def test_names_that_read_alike_have_files_of_their_own(tmp_path: Path) -> None:
    pairs = [("a/m", "d"), ("b/m", "d"), ("a/m", "d "), ("m", "m-d"), ("m-m", "d"), ("m", "m d")]
    assert len({profile_path(*pair, tmp_path) for pair in pairs}) == len(pairs)


def test_profiles_are_kept_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path))
    assert profile_path("model", "device").parent == tmp_path / "profiles"
    assert load_profile("model", "device") is None
    SMALL.save(profile_path("model", "device"))
    assert load_profile("model", "device") == SMALL
    assert load_profile("model", "other device") is None


@pytest.mark.parametrize("names", [("", "device"), ("model", " "), (None, "device")])
def test_a_profile_needs_names(names: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be a name"):
        profile_path(*names)
