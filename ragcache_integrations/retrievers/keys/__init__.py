"""Cache keys: which settings and filters make two requests the same."""

from .cache_keys import (
    FrozenArguments,
    Naming,
    Snapshot,
    Snapshots,
    filter_mark,
    freeze_arguments,
    marks_of,
    nameless_values,
    namespace_mark,
    opaque_values,
    request_key,
    said_besides,
    tenant_of,
)
from .config_reads import OwnParts
from .own_code import (
    Notes,
    Uses,
    is_own_class,
    is_own_code,
    is_own_module,
    remembered,
    slots_of,
    uses_of,
)
from .question_context import FollowUpWarning, context_text, in_context, turns_form
from .question_guard import QuestionMarks, may_share, question_difference, question_marks
from .surroundings import StepWatch, Surroundings, check_ignores
from .text_identity import TextIdentity, TextWindow, normalize_text, window_of
from .watched import subclass_of
from .wrapped_settings import (
    Parts,
    is_own_object,
    parts_within,
    settings_within,
    wrapped_settings,
)

__all__ = [
    "FollowUpWarning",
    "FrozenArguments",
    "Naming",
    "Notes",
    "OwnParts",
    "Parts",
    "QuestionMarks",
    "Snapshot",
    "Snapshots",
    "StepWatch",
    "Surroundings",
    "TextIdentity",
    "TextWindow",
    "Uses",
    "check_ignores",
    "context_text",
    "filter_mark",
    "freeze_arguments",
    "in_context",
    "is_own_class",
    "is_own_code",
    "is_own_module",
    "is_own_object",
    "marks_of",
    "may_share",
    "nameless_values",
    "namespace_mark",
    "normalize_text",
    "opaque_values",
    "parts_within",
    "question_difference",
    "question_marks",
    "remembered",
    "request_key",
    "said_besides",
    "settings_within",
    "slots_of",
    "subclass_of",
    "tenant_of",
    "turns_form",
    "uses_of",
    "window_of",
    "wrapped_settings",
]
