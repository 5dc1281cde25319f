"""Files of documents' KV caches: read as they were written, or refused."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st

from ragcache_integrations.engine.in_vllm.anywhere.codecs import CODECS, Codec, Encoded, Form
from ragcache_integrations.engine.in_vllm.anywhere.files import (
    HEADER_BYTES,
    DocumentFileError,
    read_document,
    write_document,
)
from tests.support.sizes import examples

from .bounds import bounded
from .hostile import altered_text, damaged

Kind = tuple[Codec, Form]
KINDS: list[Kind] = [
    (codec, Form(groups, 1, 4, torch.float32))
    for codec in CODECS.values()
    for groups in (((2, None),), ((1, None), (2, 3)))  # all layers alike, or two with a window
]
TOKENS = 5
NAME = "document-0.safetensors"
LENGTH = 8  # bytes of the header's length


@cache
def written(kind: Kind) -> Encoded:
    codec, form = kind
    groups = []
    for layers, kept in form.groups:
        shape = layers, min(TOKENS, kept or TOKENS), form.heads, form.size
        keys = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
        groups.append(Encoded(codec, codec.encode(keys, keys + 1000), 0))
    return Encoded.join(form, groups, 3)


@cache
def saved(kind: Kind) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model" / NAME
        path.parent.mkdir()
        write_document(path, written(kind))
        return path.read_bytes()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents") / "model"
    folder.mkdir()
    return folder / NAME


def read(path: Path, content: bytes, kind: Kind) -> None:
    # A file that is mapped is never changed in place, here neither.
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    with bounded():
        try:
            document = read_document(path, *kind, TOKENS)
        except DocumentFileError:
            event("refused")
            return
    event("read")
    right = written(kind)
    assert document.position == right.position
    assert document.parts.keys() == right.parts.keys()
    assert all(torch.equal(part, right.parts[name]) for name, part in document.parts.items())


@examples(200)
@given(st.data())
def test_damaged_files(path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    read(path, data.draw(damaged(saved(kind), (b"F64", b"[0,0]", b"\0" * 8))), kind)


@examples(200)
@given(st.data())
def test_headers_of_the_right_size(path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    content = saved(kind)
    header = json.loads(content[LENGTH:HEADER_BYTES])
    text = data.draw(altered_text(header)).encode("utf-8", "surrogatepass")
    room = HEADER_BYTES - LENGTH
    read(path, content[:LENGTH] + text[:room].ljust(room) + content[HEADER_BYTES:], kind)
