"""The app: `streamlit run app/main.py` or `medusa-sim app`. Its pages; no formula lives here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import streamlit as st

PAGES = (
    ("choose", "Choose", ":material/target:"),
    ("load", "Under load", ":material/speed:"),
    ("roofline", "Roofline", ":material/show_chart:"),
    ("tree", "Tree", ":material/account_tree:"),
    ("compare", "Compare", ":material/compare_arrows:"),
    ("validation", "Validation", ":material/fact_check:"),
    ("method", "Method and sources", ":material/menu_book:"),
)


_LOOK = Path(__file__).with_name("look.css")


def _page(name: str) -> Callable[[], None]:
    """The page of that module, imported when it is opened; it gets what the sidebar says."""

    def page() -> None:
        importlib.import_module(f"views.{name}").page(st.session_state["set_up"])

    page.__name__ = name
    return page


def main() -> None:
    """Navigation, the inputs that every page shares, and the page itself."""
    st.set_page_config(
        page_title="medusa-sim",
        page_icon=str(Path(__file__).with_name("icon.png")),
        layout="wide",
        initial_sidebar_state="auto",
    )
    st.html(_LOOK)
    pages = [
        st.Page(_page(name), title=title, icon=icon, url_path=name, default=name == "choose")
        for name, title, icon in PAGES
    ]
    page = st.navigation(pages)
    import inputs
    import show
    import sidebar
    from chosen import PRESETS

    inputs.renamed()
    inputs.open_with(next(iter(PRESETS.values())))
    with show.errors():
        # Here and not in the pages: what is drawn by this file keeps its values from page to page.
        line = st.container(horizontal=True, gap="small", vertical_alignment="center")
        st.session_state["set_up"] = set_up = sidebar.set_up(st.sidebar)
        inputs.marked()
        with line:
            st.caption(show.escaped(set_up.line))
            with st.popover("Presets", type="tertiary", icon=":material/bookmark:"):
                for name, preset in PRESETS.items():
                    st.button(
                        name, key=f"preset_{name}", type="tertiary", on_click=sidebar.take, args=(preset,)
                    )
        page.run()


main()
