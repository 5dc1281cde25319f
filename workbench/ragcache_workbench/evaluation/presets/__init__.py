"""``ragcache eval --preset``: the papers' experiments as runs, ours next to their figures."""

from .base import Cell, Form, Preset, Table, Variant
from .evaluating import PresetResult, aevaluate_preset, evaluate_preset, knobs_among
from .plan import PRESETS, PresetPlan, plan_preset
from .tables import show_tables

__all__ = [
    "PRESETS",
    "Cell",
    "Form",
    "Preset",
    "PresetPlan",
    "PresetResult",
    "Table",
    "Variant",
    "aevaluate_preset",
    "evaluate_preset",
    "knobs_among",
    "plan_preset",
    "show_tables",
]
