"""The page's configuration and the navigation: nothing else."""

from pathlib import Path

import streamlit as st

from app.nav import pages

_ICON = Path(__file__).parents[1] / "assets" / "icon.png"

st.set_page_config(page_title="glassblock", page_icon=str(_ICON), layout="wide")
st.navigation(pages(), position="hidden").run()
