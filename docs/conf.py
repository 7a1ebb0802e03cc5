"""Sphinx's settings for the pages in this folder; scripts/check builds them into build/docs."""

project = "mlc-deploy"
extensions = ["myst_parser", "sphinx_copybutton", "sphinx_design"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "mlc-deploy"
html_theme_options = {"sidebar_hide_name": False, "navigation_with_keys": True}
html_show_copyright = False
html_copy_source = html_show_sphinx = False
copybutton_prompt_text = "$ "
