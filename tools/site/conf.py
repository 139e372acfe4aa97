"""Settings of Sphinx for the site: ``make site``. Its pages are the project's Markdown files, where they lie."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

project = "Longboat"
author = "the Longboat authors"
html_title = "Longboat"

extensions = ["myst_parser", "sphinx_copybutton", "navigation"]
include_patterns = [
    "docs/*.md",
    "docs/**/*.md",
    "benchmarks/README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
]
exclude_patterns = ["**/.*"]
root_doc = "docs/index"

# Headings get the anchors that other readers of Markdown give them, so that one link works everywhere.
myst_heading_anchors = 6
myst_enable_extensions = ["strikethrough"]
# Blocks of code in languages that Pygments does not know, and lines that are prompts and not programs.
suppress_warnings = ["misc.highlighting_failure", "myst.header", "myst.strikethrough"]

html_theme = "furo"
html_theme_options = {"sidebar_hide_name": False, "navigation_with_keys": True}
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
html_permalinks = True
html_additional_pages = {"index": "front.html"}
templates_path = ["templates"]
copybutton_prompt_text = r"(host one|host two|either)?\$ +"
copybutton_prompt_is_regexp = True
