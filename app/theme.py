"""Colours, glyphs and the page's style sheet: one table of how a block's state looks.

The player draws with the same values; a test compares the two. It does not know what is shown.
"""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import streamlit as st

from app.figures.look import Look

__all__ = ["BLOCK_STATES", "LOOKS", "OWNERS", "BlockState", "ThemeName", "css", "theme_name"]

ThemeName = Literal["light", "dark"]

_ICON = Path(__file__).parents[1] / "assets" / "icon.svg"

# Okabe-Ito, one colour an owner; the dark ones are lightened until lines and text reach AA.
OWNERS: dict[ThemeName, tuple[str, ...]] = {
    "light": ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"),
    "dark": ("#4ba3e0", "#efb03a", "#2cc498", "#dd97be", "#7fc9f3", "#ff8c42", "#f3e95e"),
}


@dataclass(frozen=True, slots=True)
class BlockState:
    """How one state looks: a fill by theme ("" is the owner's colour) and a sign without colour."""

    light: str
    dark: str
    sign: str


BLOCK_STATES: dict[str, BlockState] = {
    "free": BlockState("#e9ecf1", "#272d3a", "dashed outline"),
    "owned": BlockState("", "", "solid outline"),
    "tail": BlockState("#aeb5c2", "#56607a", "slash"),
    "shared": BlockState("", "", "hatch, corner, count"),
    "cached": BlockState("#c9cdd7", "#525a6b", "#hash"),
    "touched": BlockState("#3b57d9", "#93a5ff", "thick outline"),
}

_FONT = 'Inter, system-ui, "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif'
LOOKS: dict[ThemeName, Look] = {
    "light": Look(
        ground="#ffffff", text="#1c2130", muted="#5d6475", grid="#dfe3ea", accent="#3b57d9",
        parts=("#0072b2", "#5aa9d6", "#0072b2", "#8fc1de", "#b6bcc9", "#d55e00", "#e9ecf1"),
        lines=OWNERS["light"], font=_FONT,
    ),
    "dark": Look(
        ground="#181c26", text="#e9ecf3", muted="#9aa3b5", grid="#2b3140", accent="#93a5ff",
        parts=("#4ba3e0", "#2f78ad", "#4ba3e0", "#2c5f84", "#6a7387", "#ff8c42", "#272d3a"),
        lines=OWNERS["dark"], font=_FONT,
    ),
}  # fmt: skip


def theme_name() -> ThemeName:
    """The theme that the visitor's page has now; light where nobody says."""
    return "dark" if st.context.theme.type == "dark" else "light"


def css(theme: ThemeName) -> str:
    """The page's style sheet: a slim header, cards, no default look."""
    look = LOOKS[theme]
    variables = (
        f":root{{--gbx-card:{look.ground};--gbx-line:{look.grid};--gbx-text:{look.text};"
        f"--gbx-muted:{look.muted};--gbx-accent:{look.accent};color-scheme:{theme};"
        f"--gbx-icon:url(data:image/svg+xml;base64,{base64.b64encode(_ICON.read_bytes()).decode()})}}"
    )
    return f"<style>{variables}{_SHEET}</style>"


_SHEET = """
[data-testid="stHeader"]{position:absolute;height:56px;background:transparent;pointer-events:none;z-index:30}
[data-testid="stHeader"] *{pointer-events:none}
[data-testid="stHeader"] button,[data-testid="stHeader"] button *{pointer-events:auto}
[data-testid="stMain"]{scroll-padding-bottom:150px}
[data-testid="stDecoration"],[data-testid="stStatusWidget"]{display:none}
[data-testid="stMainBlockContainer"]{max-width:none;padding:0 24px 32px}
[data-testid="stMainBlockContainer"]>[data-testid="stVerticalBlock"]{gap:10px}
.st-key-gbx-header{position:relative;background:var(--gbx-card);
  border-bottom:1px solid var(--gbx-line);margin:0 -24px 0;padding:0 64px 0 24px;
  width:calc(100% + 48px)!important;max-width:none!important;
  min-height:56px;align-items:center}
.st-key-gbx-header [data-testid="stElementContainer"]{width:auto}
.st-key-gbx-header button,.st-key-gbx-header [data-baseweb="select"]>div{min-height:32px}
.st-key-gbx-header button p{font-size:13px;white-space:nowrap}
.gbx-brand{display:flex;align-items:center;gap:10px;font-weight:700;font-size:17px;
  letter-spacing:-.01em;color:var(--gbx-text)}
.gbx-brand::before{content:"";width:26px;height:26px;background:var(--gbx-icon) center/contain}
.gbx-tab{font-size:14px;font-weight:650;color:var(--gbx-text);padding:18px 1px 15px;
  border-bottom:2.5px solid var(--gbx-accent);margin-left:14px;line-height:1.5}
.gbx-pill{display:inline-flex;align-items:center;gap:7px;max-width:360px;height:30px;
  padding:0 13px;border:1px solid var(--gbx-line);border-radius:999px;font-size:12.5px;
  color:var(--gbx-muted);white-space:nowrap;background:var(--gbx-card)}
.gbx-pill span{overflow:hidden;text-overflow:ellipsis}
.gbx-pill i{flex:none;width:8px;height:8px;border-radius:50%;background:#b87a00}
.gbx-pill.gbx-ready i{background:#009e73}
.gbx-pill.gbx-failed i{background:#d55e00;border-radius:2px}
.gbx-about{font-size:13px;line-height:20px;color:var(--gbx-muted);min-height:20px}
.gbx-about b{color:var(--gbx-text);font-weight:650}
.gbx-note{border:1px solid var(--gbx-line);border-left:4px solid var(--gbx-accent);
  border-radius:12px;background:var(--gbx-card);padding:9px 14px;font-size:13.5px;
  color:var(--gbx-text);overflow-wrap:anywhere}
.gbx-note.gbx-error{border-left-color:#d55e00}
.gbx-cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr));gap:12px}
.gbx-card{border:1px solid var(--gbx-line);border-radius:12px;background:var(--gbx-card);
  padding:12px 16px;font-size:13px;color:var(--gbx-text);min-width:0}
.gbx-card h3{display:flex;justify-content:space-between;gap:10px;font-size:13.5px;
  font-weight:650;margin:0 0 6px;padding:0;color:var(--gbx-text)}
.gbx-card h3 span{font-weight:400;font-size:12px;color:var(--gbx-muted)}
.gbx-card p{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.5;font-size:13px;
  max-height:176px;overflow:auto}
.gbx-card p.gbx-prompt{color:var(--gbx-muted);max-height:59px;margin-bottom:6px}
.gbx-title{font-size:11px;font-weight:650;letter-spacing:.08em;text-transform:uppercase;
  color:var(--gbx-muted);margin:6px 0 0}
[data-testid="stPopoverBody"]{width:min(760px,calc(100vw - 24px))!important;
  max-width:none!important;  max-height:min(720px,82vh)!important;overflow:auto;border-radius:12px;
  border:1px solid var(--gbx-line)}
[data-testid="stPopoverBody"] [data-testid="stForm"]{border:0;padding:0}
[data-testid="stPlotlyChart"]{border:1px solid var(--gbx-line);border-radius:12px;
  background:var(--gbx-card);padding:10px 12px;overflow:hidden}
[class*="st-key-gbx-figure-"]{border:1px solid var(--gbx-line);border-radius:12px;
  background:var(--gbx-card);padding:10px 12px 8px;gap:0!important;min-width:0}
[class*="st-key-gbx-figure-"] [data-testid="stPlotlyChart"]{border:0;padding:0;background:none}
.st-key-gbx-header>:has(.gbx-pill){width:auto;flex:none}
@media (min-width:1100px){
  .st-key-gbx-header{flex-wrap:nowrap!important}
  .st-key-gbx-header>:has(.gbx-pill){flex:0 1 auto;min-width:48px}
  .st-key-gbx-header :has(>.gbx-pill){min-width:0}
  .st-key-gbx-header .gbx-pill{max-width:min(360px,100%)}
  .st-key-gbx_scenario{flex:0 1 270px!important;min-width:150px!important}
}
.st-key-gbx-bar{align-items:center}
.st-key-gbx-progress{margin:-10px 0 -4px}
[data-testid="InputInstructions"]{display:none}
[data-testid="stMainMenuButton"],[data-testid="stMainMenu"] button{background:var(--gbx-card);
  border-radius:50%}
@media (max-width:760px){
  [data-testid="stMainBlockContainer"]{padding:0 10px 24px}
  .st-key-gbx-header{margin:0 -10px;width:calc(100% + 20px)!important;padding:6px 10px 8px;gap:8px}
  .st-key-gbx-header>div:has(.stSpace){display:none}
  .st-key-gbx-header>*{max-width:100%;order:2}
  .st-key-gbx-header>:first-child,.st-key-gbx-header>.st-key-gbx_lang,
  .st-key-gbx-header>:has(>.st-key-gbx_lang){order:0}
  .st-key-gbx-tabs{overflow-x:auto;scrollbar-width:none}
  .st-key-gbx-header>.st-key-gbx-tabs,.st-key-gbx-header>:has(>.st-key-gbx-tabs){order:1}
  .gbx-tab{display:none}
  .gbx-pill{max-width:calc(100vw - 20px)}
}
@media (prefers-reduced-motion:reduce){*{transition:none!important;animation:none!important}}
"""
