"""The site: `make site`. Every warning is an error, so a link or an anchor that leads nowhere fails the build."""

from pg_pipeline import __version__

project = "pg_pipeline"
release = __version__
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
nitpicky = True
suppress_warnings: list[str] = []

html_theme = "furo"
html_title = f"pg_pipeline {release}"
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"top_of_page_buttons": []}
