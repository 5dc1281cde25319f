"""How Sphinx builds the documentation: ``make docs``, into ``build/docs``.

What is built needs no network: formulas become MathML, which browsers draw by themselves.
"""
# ruff: noqa: INP001 - no package, Sphinx runs this file

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx

from ragcache_integrations import __version__

project = "ragcache-integrations"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
# Configurations of programs that Pygments does not know are shown as plain text.
suppress_warnings = ["misc.highlighting_failure"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_inherit_docstrings = False  # the frameworks describe what is theirs
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {
    # What pydantic adds to a class of ours says nothing about it.
    "exclude-members": "model_config, model_fields, model_computed_fields, model_post_init",
}
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # pydantic's fields are described in their class's docstring alone
python_display_short_literal_types = True

html_theme = "furo"
html_title = f"ragcache-integrations {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
html_copy_source = False
html_show_copyright = False
html_math_renderer = "mathml"


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _display(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(convert(node.astext(), display="block"))
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Draw formulas as MathML."""
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
