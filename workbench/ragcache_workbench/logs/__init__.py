"""Logs of requests: read from files of many tools, and linted."""

from .files import Log, RequestLog, read_log, read_requests, read_text
from .requests import RecordedRequest, decoded, recorded_requests
from .traffic import lint_traffic

__all__ = [
    "Log",
    "RecordedRequest",
    "RequestLog",
    "decoded",
    "lint_traffic",
    "read_log",
    "read_requests",
    "read_text",
    "recorded_requests",
]
