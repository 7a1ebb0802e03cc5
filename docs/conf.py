"""Sphinx's settings for the pages in this folder; scripts/check builds them into build/docs."""

project = "mlc-deploy"
extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "alabaster"  # all of it is in the pages: they work offline
html_theme_options = {"description": "Trained models on ARM boards", "page_width": "1100px"}
html_show_copyright = False
html_copy_source = html_show_sphinx = False
