"""The engine's process seen from the application: start, messages, supervision, restarts."""

from .client import LONGEST_SOCKET_FOLDER, Silence, why_hung
from .orphans import ApplicationWatch, resume_when_orphaned
from .requests import Received, expect
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
