"""What the application and the engine's process agree on: settings, messages, counts."""

from .counters import Counters
from .documents import document_key
from .faults import FaultSettings, backoff_seconds, heartbeat_seconds
from .messages import (
    SLOW_DTYPE,
    START_ERRORS,
    Abort,
    Answer,
    Begun,
    Control,
    EngineSettings,
    FailureKind,
    Heartbeat,
    Output,
    Ready,
    RequestFailed,
    Shutdown,
    StartFailed,
    Step,
    Submit,
    ToolUse,
)
from .settings import MOST_LINK_TOKENS, MOST_URGENT, REUSES, CacheSettings
from .stats import EngineCallOptions, EngineLoad, EngineStats

__all__ = [
    "MOST_LINK_TOKENS",
    "MOST_URGENT",
    "REUSES",
    "SLOW_DTYPE",
    "START_ERRORS",
    "Abort",
    "Answer",
    "Begun",
    "CacheSettings",
    "Control",
    "Counters",
    "EngineCallOptions",
    "EngineLoad",
    "EngineSettings",
    "EngineStats",
    "FailureKind",
    "FaultSettings",
    "Heartbeat",
    "Output",
    "Ready",
    "RequestFailed",
    "Shutdown",
    "StartFailed",
    "Step",
    "Submit",
    "ToolUse",
    "backoff_seconds",
    "document_key",
    "heartbeat_seconds",
]
