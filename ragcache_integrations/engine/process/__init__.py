"""The engine's process seen from the application: start, messages, supervision, restarts."""

from .client import LONGEST_SOCKET_FOLDER
from .orphans import ApplicationWatch, resume_when_orphaned
from .requests import Received, expect
from .silence import Silence, why_hung
from .supervisor import Supervisor, acontrol, control

__all__ = [
    "LONGEST_SOCKET_FOLDER",
    "ApplicationWatch",
    "Received",
    "Silence",
    "Supervisor",
    "acontrol",
    "control",
    "expect",
    "resume_when_orphaned",
    "why_hung",
]
