"""The documentation site: `make docs` builds it from these Markdown files into build/docs, without a network."""

from campaign import __version__

project = "Composable Campaign"
author = "The Composable Campaign developers"
copyright = f"{author}; Apache-2.0"
release = version = __version__

extensions = ["myst_parser"]
html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
html_show_sphinx = False
myst_heading_anchors = 6
