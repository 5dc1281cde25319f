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

from ragcache_integrations.engine.in_vllm.anywhere.files import (
    HEADER_BYTES,
    DocumentFileError,
    read_document,
    write_document,
)
from ragcache_integrations.engine.in_vllm.anywhere.paged import Encoded, Form
from tests.support.sizes import examples

from .bounds import bounded
from .hostile import altered_text, damaged

FORMS = [
    Form(((2, None),), 1, 4, torch.float32),
    Form(((1, None), (2, 3)), 1, 4, torch.float32),  # two layers have a window
]
TOKENS = 5
NAME = "document-0.safetensors"
LENGTH = 8  # bytes of the header's length


@cache
def written(form: Form) -> Encoded:
    numbers = torch.arange(form.nbytes(TOKENS) // 4, dtype=torch.float32)
    numbers = numbers.view(2, *form.shape(TOKENS))
    return Encoded(numbers[0].clone(), numbers[1].clone(), 3)


@cache
def saved(form: Form) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model" / NAME
        path.parent.mkdir()
        write_document(path, written(form))
        return path.read_bytes()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents") / "model"
    folder.mkdir()
    return folder / NAME


def read(path: Path, content: bytes, form: Form) -> None:
    # A file that is mapped is never changed in place, here neither.
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    with bounded():
        try:
            document = read_document(path, form, TOKENS)
        except DocumentFileError:
            event("refused")
            return
    event("read")
    assert document.position == written(form).position
    assert torch.equal(document.keys, written(form).keys)
    assert torch.equal(document.values, written(form).values)


@examples(200)
@given(st.data())
def test_damaged_files(path: Path, data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(FORMS))
    read(path, data.draw(damaged(saved(form), (b"F64", b"[0,0]", b"\0" * 8))), form)


@examples(200)
@given(st.data())
def test_headers_of_the_right_size(path: Path, data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(FORMS))
    content = saved(form)
    header = json.loads(content[LENGTH:HEADER_BYTES])
    text = data.draw(altered_text(header)).encode("utf-8", "surrogatepass")
    room = HEADER_BYTES - LENGTH
    read(path, content[:LENGTH] + text[:room].ljust(room) + content[HEADER_BYTES:], form)
