"""How the site is built: ``python -m sphinx -W --keep-going -b html docs docs/_build/html``. Needs no network."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_ext"))
sys.path.insert(0, str(HERE.parent / "src"))

import farfield  # noqa: E402

project = "farfield"
author = "The farfield developers"
copyright = "The farfield developers, Apache-2.0"  # noqa: A001
version = release = farfield.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "as_written",
    "atlas",
    "comparison",
    "completeness",
    "mathtext",
    "reproductions",
    "tests_of",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "gallery/*.ipynb", "reproductions/*/*", "sg_execution_times.rst"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
default_role = None
html_math_renderer = "mathtext"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
autosummary_imported_members = True
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_numpy_docstring = True
napoleon_use_rtype = False
napoleon_use_param = False
napoleon_use_ivar = True
maximum_signature_line_length = 88
toc_object_entries = False
add_module_names = False
python_use_unqualified_type_names = True

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"plot_",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "plot_gallery": True,
    "abort_on_example_error": True,
    "write_computation_times": False,
    "copyfile_regex": "",
    "backreferences_dir": None,
    "notebook_extensions": set(),
    "matplotlib_animations": False,
    "capture_repr": (),
}

html_theme = "furo"
html_title = f"farfield {release}"
html_static_path = ["_static"]
html_css_files = ["farfield.css"]
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0B5C8A", "color-brand-content": "#0B5C8A"},
    "dark_css_variables": {"color-brand-primary": "#6CB8E6", "color-brand-content": "#6CB8E6"},
}
