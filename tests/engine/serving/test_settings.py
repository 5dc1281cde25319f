from __future__ import annotations

import math
from typing import Any

import pytest

from ragcache_integrations.engine.serving import ServingSettings
from ragcache_integrations.errors import ConfigurationError


def test_they_travel_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ServingSettings(
        max_prompt_bytes=1000,
        new_tenants_per_minute=7,
        drain_seconds=0.5,
        log_prompts=True,
        hang_timeout=None,
        body_seconds=None,
        folder="/somewhere",
    )
    for name, value in given.as_environment().items():
        monkeypatch.setenv(name, value)
    assert ServingSettings.from_environment() == given
    for name in given.as_environment():
        monkeypatch.delenv(name)
    assert ServingSettings.from_environment() == ServingSettings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_prompt_bytes", 0),
        ("max_prompt_bytes", 1.5),
        ("new_tenants_per_minute", -1),
        ("new_tenants_per_minute", True),
        ("drain_seconds", -1),
        ("drain_seconds", math.nan),
        ("log_prompts", 1),
        ("hang_timeout", 0),
        ("step_timeout", "10"),
        ("max_header_bytes", 0),
        ("max_header_bytes", 1e4),
        ("max_headers", 0),
        ("max_headers", None),
        ("header_seconds", 0),
        ("header_seconds", math.inf),
        ("body_seconds", -1),
        ("body_seconds", True),
        ("max_connections_per_client", -1),
        ("max_connections_per_client", "many"),
    ],
)
def test_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name} must be .*got "):
        ServingSettings(**{name: value})
