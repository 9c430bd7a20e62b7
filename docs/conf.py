"""Sphinx settings of the website. `make docs` calls docs/site/build.py, which generates the pages for Sphinx."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "site"))

from reference import ABSENT

project = "attend"
author = "the authors of attend"
copyright = "the authors of attend"

extensions = [
    "myst_parser",
    "breathe",
    "sphinx.ext.autodoc",
    "sphinx.ext.graphviz",
    "sphinx.ext.napoleon",
    "attend_site",
]
source_suffix = {".md": "markdown"}
nitpicky = True
nitpick_ignore_regex = [
    ("c:identifier", r"u?int\d+_t|size_t"),
    ("cpp:identifier", r"State|core(::.*)?|ring(::.*)?|MPI_Comm"),  # declared in the headers, but not documented
    ("py:obj", "(?s).*"),  # text in backticks is a link if an object has this name; it may contain line breaks
    ("py:(class|exc)", ".*"),  # types of other packages
]
default_role = "py:obj"

myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]  # a file of notes may start with a heading of any level

breathe_projects = {"attend": os.environ["ATTEND_DOXYGEN_XML"]}
breathe_default_project = "attend"
breathe_domain_by_extension = {"h": "c", "hpp": "cpp"}
autodoc_mock_imports = ABSENT
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_custom_sections = [("Fields", "params_style")]  # of named tuples
breathe_order_parameters_first = True

graphviz_output_format = "svg"

toc_object_entries = False  # otherwise the sidebar lists every member of every class

html_theme = "furo"
html_title = "attend"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_search_summary = False  # summaries fetch pages, which browsers refuse for local files
html_show_sphinx = False
