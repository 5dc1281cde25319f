"""Plans which prompt layout reuses the most."""

from .plan import FlowPart, FlowStep, PrefixPlan, Traffic

__all__ = [
    "FlowPart",
    "FlowStep",
    "PrefixPlan",
    "Traffic",
]
