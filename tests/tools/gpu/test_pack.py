"""What is packed for another machine keeps the code of its GPU only."""

from __future__ import annotations

import struct

import pytest

from tools.gpu.pack import CONTAINER, ENTRY, MACHINE_CODE, PTX, entries, keep_arch, needed, pinned

HEADER = 32


def entry(kind: int, arch: int, code: bytes) -> bytes:
    """Code with its header."""
    start = ENTRY.pack(kind, 1, HEADER, len(code))
    return start.ljust(28, b"\0") + struct.pack("<I", arch) + code


def container(*parts: bytes) -> bytes:
    """A fat binary."""
    inside = b"".join(parts)
    return CONTAINER.pack(0xBA55ED50, 1, CONTAINER.size, len(inside)) + inside


PARTS = [
    (MACHINE_CODE, 80, b"a" * 8),
    (MACHINE_CODE, 90, b"b" * 16),
    (PTX, 80, b"c" * 8),
    (PTX, 100, b"d" * 24),
    (MACHINE_CODE, 120, b"e" * 8),
]


def test_code_of_other_gpus_becomes_zeros_and_nothing_moves() -> None:
    around = b"ELF" * 5
    whole = around + container(*(entry(*part) for part in PARTS)) + around
    data = bytearray(whole + container(entry(*PARTS[0])))
    before = len(data)
    keep_arch(data, 90)
    assert len(data) == before
    assert data.startswith(around)
    assert data[len(whole) - len(around) : len(whole)] == around
    kept = [(kind, arch, bytes(data[begin:end])) for kind, arch, begin, end in entries(data)]
    usable = {PARTS[1], PARTS[2]}
    assert kept == [
        part if part in usable else (*part[:2], bytes(len(part[2]))) for part in [*PARTS, PARTS[0]]
    ]


@pytest.mark.parametrize("text", ["", "no pin\n# a==1\n"])
def test_lines_without_a_version_count_for_nothing(text: str) -> None:
    assert pinned(text) == {}


def test_names_are_compared_as_indexes_do() -> None:
    assert pinned("Llama_Index.Core==0.1\nnumpy==2.5.2\n") == {
        "llama-index-core": "0.1",
        "numpy": "2.5.2",
    }


def test_what_a_package_needs_is_found_through_others_and_their_extras() -> None:
    names = needed(["langchain-core"])
    assert {"langchain-core", "pydantic", "pydantic-core", "typing-extensions"} <= names
    assert "h2" not in needed(["httpx"])
    assert "h2" in needed(["httpx[http2]"])


def test_a_package_that_is_not_here_needs_nothing() -> None:
    assert needed(["No_such.package"]) == {"no-such-package"}
