"""What a run writes to disk, and how it resumes."""

from .checkpoints import Checkpoint, read_checkpoint, read_json_file
from .directory import RunDirectory
from .environment import describe_environment, now
from .records import Number, Pending, Record, Share, Whole, reason
from .rephrasings import LONGEST_TEXT, Refusal, Rephrasing, RephrasingsFile

__all__ = [
    "LONGEST_TEXT",
    "Checkpoint",
    "Number",
    "Pending",
    "Record",
    "Refusal",
    "Rephrasing",
    "RephrasingsFile",
    "RunDirectory",
    "Share",
    "Whole",
    "describe_environment",
    "now",
    "read_checkpoint",
    "read_json_file",
    "reason",
]
