"""How Sphinx makes the site; ``build.py`` lays the pages out and calls it. Nothing is fetched."""

from typing import Any

from sphinx.application import Sphinx

import trainwright

project = "trainwright"
author = "the authors of trainwright"
release = version = trainwright.__version__
root_doc = "docs/index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

html_theme = "furo"
html_title = f"{project} {version}"
smartquotes = False  # '' is an empty text, and -- an option
html_show_copyright = html_show_sphinx = html_copy_source = html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["site.css"]
pygments_style = "friendly"
pygments_dark_style = "monokai"
highlight_language = "none"

myst_heading_anchors = 4
myst_links_external_new_tab = False
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_use_rtype = False
napoleon_use_ivar = True

COLON = "\ue000"  # of no alphabet: stands for a colon for a moment


def setup(app: Sphinx) -> None:
    """Hide colons in docstrings of constants from napoleon, which takes what stands before one for a type."""
    app.connect("autodoc-process-docstring", _hide, priority=400)
    app.connect("autodoc-process-docstring", _show, priority=600)


def _hide(*told: Any) -> None:
    what, lines = told[1], told[-1]
    if what in {"attribute", "data"}:
        lines[:] = [line.replace(": ", COLON) for line in lines]


def _show(*told: Any) -> None:
    lines = told[-1]
    lines[:] = [line.replace(COLON, ": ") for line in lines]
