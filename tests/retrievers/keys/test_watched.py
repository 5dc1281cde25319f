from __future__ import annotations

import contextvars

import pytest

from ragcache_integrations.retrievers.keys.watched import variables_around


def test_settings_of_torch_name_no_user() -> None:
    config = pytest.importorskip("torch._inductor.config")

    def patched() -> set[str]:
        with config.patch(post_grad_fusion_options={}):
            config.max_autotune = True
            return {name for _, name, _ in variables_around()}

    before = {name for _, name, _ in variables_around()}
    assert contextvars.copy_context().run(patched) == before


def test_a_variable_named_like_a_setting_of_torch_counts() -> None:
    own = [contextvars.ContextVar[str](name) for name in ("max_autotune", "app.ConfigPatch[1]")]

    def named() -> set[str]:
        for variable in own:
            variable.set("ann")
        return {name for _, name, _ in variables_around()}

    assert contextvars.copy_context().run(named) >= {variable.name for variable in own}
