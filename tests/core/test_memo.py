import pytest

from ragcache_integrations.core.memo import Memo


def test_the_least_recently_used_is_forgotten() -> None:
    memo = Memo[str, int](2)
    memo["a"], memo["b"] = 1, 2
    assert memo["a"] == 1
    memo["c"] = 3
    assert dict(memo) == {"a": 1, "c": 3}
    assert memo.get("b") is None


def test_put_returns_what_is_forgotten() -> None:
    memo = Memo[str, int](max_size=5, size=lambda _, value: value)
    assert memo.put("a", 2) == memo.put("b", 3) == []
    assert memo.put("c", 4) == [("a", 2), ("b", 3)]
    assert (dict(memo), memo.held) == ({"c": 4}, 4)


def test_what_is_too_large_is_not_kept_and_drives_nothing_out() -> None:
    memo = Memo[str, int](max_size=5, size=lambda _, value: value)
    memo["a"] = 2
    assert memo.put("b", 6) == []
    assert dict(memo) == {"a": 2}
    memo["a"] = 6  # the old value is not right any more
    assert (dict(memo), memo.held) == ({}, 0)


def test_sizes_follow_every_change() -> None:
    memo = Memo[str, str](max_size=100, size=lambda key, value: len(key) + len(value))
    memo["a"] = "123"
    memo["a"] = "12"
    assert memo.held == 3
    memo["bc"] = ""
    assert memo.pop("a") == "12"
    assert memo.held == 2
    memo.clear()
    assert (len(memo), memo.held) == (0, 0)


def test_a_memo_without_room_keeps_nothing() -> None:
    memo = Memo[str, int](0)
    assert memo.put("a", 1) == [("a", 1)]
    assert "a" not in memo
    with pytest.raises(KeyError):
        memo["a"]


def test_values_can_be_read_while_the_memo_is_walked() -> None:
    memo = Memo[int, int](3)
    for number in range(3):
        memo[number] = number
    assert [(key, memo[key]) for key in memo] == list(memo.items()) == [(n, n) for n in range(3)]
