"""This package's errors as LangChain's: each raised one is both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langchain_core import exceptions as core

from ragcache_integrations.errors import (
    GenerationTimeoutError,
    PromptTooLongError,
    RAGCacheError,
    ServerResponseError,
    ServerTimeoutError,
    ServerUnreachableError,
    StructuredOutputError,
)

__all__ = ["langchain_errors"]

FIRST_SERVER_FAILURE = 500


class _PromptTooLongError(PromptTooLongError, core.ContextOverflowError):
    pass


class _GenerationTimeoutError(GenerationTimeoutError, core.ModelTimeoutError):
    pass


class _ServerTimeoutError(ServerTimeoutError, core.ModelTimeoutError):
    pass


class _ServerUnreachableError(ServerUnreachableError, core.ModelConnectionError):
    pass


class _StructuredOutputError(StructuredOutputError, core.OutputParserException):
    observation = None
    send_to_llm = False

    @property
    def llm_output(self) -> str:  # type: ignore[override]  # LangChain only reads it
        return self.text


class _InvalidRequestError(ServerResponseError, core.ModelInvalidRequestError):
    pass


class _UnauthenticatedError(ServerResponseError, core.ModelAuthenticationError):
    pass


class _PermissionDeniedError(ServerResponseError, core.ModelPermissionDeniedError):
    pass


class _ModelNotFoundError(ServerResponseError, core.ModelNotFoundError):
    pass


class _RateLimitedError(ServerResponseError, core.ModelRateLimitError):
    pass


class _ServerFailedError(ServerResponseError, core.ModelAPIError):
    pass


_BY_TYPE: dict[type[RAGCacheError], type[RAGCacheError]] = {
    PromptTooLongError: _PromptTooLongError,
    GenerationTimeoutError: _GenerationTimeoutError,
    ServerTimeoutError: _ServerTimeoutError,
    ServerUnreachableError: _ServerUnreachableError,
    StructuredOutputError: _StructuredOutputError,
}

_BY_STATUS: dict[int, type[RAGCacheError]] = {
    400: _InvalidRequestError,
    401: _UnauthenticatedError,
    403: _PermissionDeniedError,
    404: _ModelNotFoundError,
    422: _InvalidRequestError,
    429: _RateLimitedError,
}


@contextmanager
def langchain_errors() -> Iterator[None]:
    """Raise what LangChain has a name for under that name too, so that either can be caught."""
    try:
        yield
    except RAGCacheError as error:
        kind = _kind(error)
        if kind is None:
            raise
        both = kind.__new__(kind, *error.args)  # their constructors differ; the state is the same
        both.__dict__.update(vars(error))
        raise both from error


def _kind(error: RAGCacheError) -> type[RAGCacheError] | None:
    if isinstance(error, ServerResponseError):
        status = error.status_code or 0
        return _BY_STATUS.get(
            status, _ServerFailedError if status >= FIRST_SERVER_FAILURE else None
        )
    return _BY_TYPE.get(type(error))
