"""Reuse anywhere over HTTP: approximate by default, exact for who asks for that."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from ragcache_integrations.langchain import ChatRAGCache

from .starting import MODEL, SMALL, Server

pytestmark = pytest.mark.engine

TEXTS = [f"The river number {number} flows past {number} old mills. " * 6 for number in range(3)]


def content(*texts: str) -> list[dict[str, Any]]:
    documents = [{"type": "document", "text": text} for text in texts]
    return [*documents, {"type": "text", "text": "\n\nWhich river is it?"}]


def test_documents_are_reused_anywhere(tmp_path: Path) -> None:
    arguments = (*SMALL, "--reuse", "anywhere", "--link-tokens", "2")
    disk = (
        *("--disk-cache-gib", "0.2", "--disk-cache-dir", str(tmp_path)),
        *("--document-cache-gib", "0.000001"),  # so that all of them are read from there
    )
    with Server(tmp_path, *arguments, *disk) as server:
        server.wait_ready()

        def cached(*texts: str, **fields: Any) -> int:
            status, said = server.chat(content(*texts), max_tokens=2, **fields)
            assert status == 200, said
            tokens: int = said["usage"]["prompt_tokens_details"]["cached_tokens"]
            return tokens

        assert cached(*TEXTS) == 0
        until = time.monotonic() + 60
        # As they follow each other in this prompt, and each by itself.
        while len(list(tmp_path.glob("documents/*/*.safetensors"))) < 2 * len(TEXTS):
            assert time.monotonic() < until
            time.sleep(0.05)
        most, fewer = (cached(*TEXTS[::-1], link_tokens=links) for links in (0, 20))
        assert cached(*TEXTS[::-1], reuse="prefix") < fewer < most
        assert cached(*TEXTS[::-1], cache_salt="somebody else's") == 0
        for path in tmp_path.glob("documents/*/*.safetensors"):
            stored = path.read_bytes()
            path.write_bytes(stored[:-1] + bytes([stored[-1] ^ 1]))
        assert cached(TEXTS[1], TEXTS[2], TEXTS[0], link_tokens=0) == 0  # and no error

        def by_our_class(knobs: dict[str, Any], **call: Any) -> int:
            where: dict[str, Any] = {"base_url": server.base_url, "model": MODEL, "max_tokens": 2}
            texts = [TEXTS[2], TEXTS[0], TEXTS[1]]  # nobody has asked with them in this order
            message = HumanMessage("".join(texts) + "\n\nWhich river is it?")
            with ChatRAGCache(**where, **knobs) as model:
                said: Any = model.invoke([message], documents=texts, **call)
            tokens: int = said.usage_metadata["input_token_details"]["cache_read"]
            return tokens

        links = {"reuse": "anywhere", "link_tokens": 0}
        fewer, most = by_our_class(links, link_tokens=20), by_our_class(links)
        assert by_our_class({}, reuse="prefix") < fewer < most
        status, said = server.chat(content(*TEXTS), reuse="everywhere")
        assert status == 400
        assert "'prefix' or 'anywhere'" in said["error"]["message"]
