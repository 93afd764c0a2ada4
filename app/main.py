"""The app: `streamlit run app/main.py` or `medusa-sim app`. Its pages; no formula lives here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import streamlit as st

WHICH = "which-gpu"
PAGES = (
    ("answer", "Answer", ":material/target:"),
    ("load", "Under load", ":material/speed:"),
    (WHICH, "Which GPU?", ":material/memory:"),
    ("own", "On your own machine", ":material/computer:"),
    ("evidence", "Evidence", ":material/fact_check:"),
)
# Comments and no strings: Streamlit writes bare strings of its main file on the page.
# Where the engine runs trees.
TREE = ("tree", "Tree", ":material/account_tree:")
_LOOK = Path(__file__).with_name("look.css").read_text(encoding="utf-8")


def _page(name: str) -> Callable[[], None]:
    """The page of that address, its module imported when it is opened; it gets what the sidebar says."""

    def page() -> None:
        module = "compare" if name == WHICH else name
        importlib.import_module(f"views.{module}").page(st.session_state["set_up"])

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
    st.markdown(f"<style>{_LOOK}</style>", unsafe_allow_html=True)  # as figures: at once
    import guard
    import inputs
    import show
    import sidebar
    from chosen import PRESETS

    guard.stand()

    with show.errors():
        page = _navigated(trees=sidebar.runs_trees())
        inputs.take_words(page.url_path)
        # Here and not in the pages: what is drawn by this file keeps its values from page to page.
        line = st.container(horizontal=True, gap="small", vertical_alignment="center")
        searched = page.url_path == WHICH
        st.session_state["set_up"] = set_up = sidebar.set_up(st.sidebar, searched=searched)
        with line:
            st.caption(show.escaped(set_up.drafted if searched else set_up.line))
            with st.popover("Presets", type="tertiary", icon=":material/bookmark:"):
                for name, preset in PRESETS.items():
                    st.button(
                        name, key=f"preset_{name}", type="tertiary", on_click=sidebar.take, args=(preset,)
                    )
        page.run()


def _navigated(*, trees: bool) -> st.Page:
    """The page asked for."""
    pages = {
        name: st.Page(
            _page(name),
            title=title,
            icon=icon,
            url_path=name,
            default=name == PAGES[0][0],
            visibility="visible" if trees or name != TREE[0] else "hidden",
        )
        for name, title, icon in (*PAGES, TREE)
    }
    return st.navigation([*pages.values()])


main()
