"""The app: `streamlit run app/main.py` or `medusa-sim app`. Its pages; no formula lives here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import streamlit as st

WHICH, OWN = "which-gpu", "own"
PAGES = (
    ("answer", "Answer", ":material/target:"),
    ("load", "Under load", ":material/speed:"),
    (WHICH, "Which GPU?", ":material/memory:"),
    (OWN, "On your own machine", ":material/computer:"),
    ("evidence", "Evidence", ":material/fact_check:"),
)
# Where an answer is kept.
BESIDE = ("beside", "Side by side", ":material/compare_arrows:")
# Comments and no strings: Streamlit writes bare strings of its main file on the page.
# Where the engine runs trees.
TREE = ("tree", "Tree", ":material/account_tree:")
_LOOK = Path(__file__).with_name("look.css").read_text(encoding="utf-8")


def _module(name: str) -> str:
    return f"views.{'compare' if name == WHICH else name}"


def _page(name: str) -> Callable[[], None]:
    """The page of that address, its module imported when it is opened; it gets what the bar says."""

    def page() -> None:
        importlib.import_module(_module(name)).page(st.session_state["set_up"])

    page.__name__ = name
    return page


def main() -> None:
    """Navigation, the question in a bar, the page itself, and at its foot what a running server says."""
    st.set_page_config(
        page_title="medusa-sim",
        page_icon=str(Path(__file__).with_name("icon.png")),
        layout="wide",
        initial_sidebar_state="collapsed",
    )
    st.markdown(f"<style>{_LOOK}</style>", unsafe_allow_html=True)  # as figures: at once
    import bar
    import guard
    import kept_answers
    import link
    import presets
    import show
    from chosen import INPUTS, set_up_of
    from views import server

    guard.stand()

    with show.errors():
        page = _navigated(trees=bar.runs_trees(), beside=kept_answers.is_any())
        link.resolve_aliases(page.url_path)
        kept_answers.all_kept()
        # Here and not in the pages: what is drawn by this file keeps its values from page to page.
        if show.embedded():
            said = st.query_params.to_dict()
            link.read(*INPUTS)
            st.session_state["set_up"] = set_up_of(said)
            page.run()
            return
        st.session_state["set_up"] = bar.set_up(
            st, searched=page.url_path == WHICH, away=page.url_path == OWN
        )
        place = st.container(key="examples")
        page.run()
        if page.url_path == "":
            with place:  # last: nobody waits for them
                presets.cards()
        if page.url_path != OWN:
            server.judged(st.session_state["set_up"])


def _navigated(*, trees: bool, beside: bool) -> st.Page:
    """The page asked for; trees, beside: whether those pages are listed."""
    listed = {TREE[0]: trees, BESIDE[0]: beside}
    pages = {
        name: st.Page(
            _page(name),
            title=title,
            icon=icon,
            url_path=name,
            default=name == PAGES[0][0],
            visibility="visible" if listed.get(name, True) else "hidden",
        )
        for name, title, icon in (*PAGES, TREE, BESIDE)
    }
    return st.navigation([*pages.values()], position="hidden" if st.context.is_embedded else "top")


main()
