"""This package's errors as LangChain's: each raised one is both.

Their names are those of this package's own, since tracebacks show them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langchain_core import exceptions as core

from ragcache_integrations import errors
from ragcache_integrations.errors import RAGCacheError, ServerResponseError

__all__ = ["langchain_errors"]

FIRST_SERVER_FAILURE = 500


class PromptTooLongError(errors.PromptTooLongError, core.ContextOverflowError):
    pass


class GenerationTimeoutError(errors.GenerationTimeoutError, core.ModelTimeoutError):
    pass


class ServerTimeoutError(errors.ServerTimeoutError, core.ModelTimeoutError):
    pass


class ServerUnreachableError(errors.ServerUnreachableError, core.ModelConnectionError):
    pass


class StructuredOutputError(errors.StructuredOutputError, core.OutputParserException):
    observation = None
    send_to_llm = False

    @property
    def llm_output(self) -> str:  # type: ignore[override]  # LangChain only reads it
        return self.text


class InvalidRequestError(ServerResponseError, core.ModelInvalidRequestError):
    pass


class UnauthenticatedError(ServerResponseError, core.ModelAuthenticationError):
    pass


class PermissionDeniedError(ServerResponseError, core.ModelPermissionDeniedError):
    pass


class ModelNotFoundError(ServerResponseError, core.ModelNotFoundError):
    pass


class RateLimitedError(ServerResponseError, core.ModelRateLimitError):
    pass


class ServerFailedError(ServerResponseError, core.ModelAPIError):
    pass


_BY_TYPE: dict[type[RAGCacheError], type[RAGCacheError]] = {
    errors.PromptTooLongError: PromptTooLongError,
    errors.GenerationTimeoutError: GenerationTimeoutError,
    errors.ServerTimeoutError: ServerTimeoutError,
    errors.ServerUnreachableError: ServerUnreachableError,
    errors.StructuredOutputError: StructuredOutputError,
}

_BY_STATUS: dict[int, type[RAGCacheError]] = {
    400: InvalidRequestError,
    401: UnauthenticatedError,
    403: PermissionDeniedError,
    404: ModelNotFoundError,
    422: InvalidRequestError,
    429: RateLimitedError,
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
        # As if it had been raised in the first place: one traceback, with the same cause.
        raise both.with_traceback(error.__traceback__) from error.__cause__


def _kind(error: RAGCacheError) -> type[RAGCacheError] | None:
    if isinstance(error, ServerResponseError):
        status = error.status_code or 0
        return _BY_STATUS.get(status, ServerFailedError if status >= FIRST_SERVER_FAILURE else None)
    return _BY_TYPE.get(type(error))
