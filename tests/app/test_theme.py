"""One palette: the page's table, the player's script, and the server's settings agree."""

import re
import tomllib
from pathlib import Path

import pytest

from app.serve import settings
from app.theme import BLOCK_STATES, LOOKS, OWNERS, ThemeName, css

ROOT = Path(__file__).parents[2]
THEMES: tuple[ThemeName, ...] = ("light", "dark")


def player_inks(theme: str) -> dict[str, str]:
    text = (ROOT / "assets/player/player.js").read_text(encoding="utf-8")
    block = re.search(r"const INKS = \{(.*?)\n\};", text, re.S)
    assert block is not None
    part = re.search(theme + r": \{(.*?)\n  \}", block[1], re.S)
    assert part is not None
    return dict(re.findall(r'(\w+): "(#[0-9a-f]{6})"', part[1]))


def player_variables(theme: str) -> dict[str, str]:
    text = (ROOT / "assets/player/player.css").read_text(encoding="utf-8")
    head = r"^\.gb \{" if theme == "light" else r'^\.gb\[data-theme="dark"\] \{'
    block = re.search(head + r"(.*?)^\}", text, re.S | re.M)
    assert block is not None
    return dict(re.findall(r"--gb-([\w-]+): (#[0-9a-f]{6});", block[1]))


@pytest.mark.parametrize("theme", THEMES)
def test_owners_have_the_players_colours(theme: ThemeName) -> None:
    text = (ROOT / "assets/player/player.js").read_text(encoding="utf-8")
    block = re.search(r"const OWNERS = \{(.*?)\};", text, re.S)
    assert block is not None
    line = re.search(theme + r": \[(.*?)\]", block[1])
    assert line is not None
    assert tuple(re.findall(r"#[0-9a-f]{6}", line[1])) == OWNERS[theme]


@pytest.mark.parametrize("theme", THEMES)
def test_block_states_have_the_players_colours(theme: ThemeName) -> None:
    inks = player_inks(theme)
    names = {"free": "slot", "tail": "slash", "cached": "cached", "touched": "accent"}
    for state, ink in names.items():
        assert getattr(BLOCK_STATES[state], theme) == inks[ink]
    assert all(state.sign for state in BLOCK_STATES.values())


@pytest.mark.parametrize("theme", THEMES)
def test_the_page_and_the_charts_have_the_players_colours(theme: ThemeName) -> None:
    css_colours, look = player_variables(theme), LOOKS[theme]
    assert (look.text, look.muted, look.accent, look.ground) == tuple(
        css_colours[name] for name in ("text", "muted", "accent", "card")
    )
    for name in ("tokens", "tail", "cached", "free"):
        assert look.part(name) == css_colours[name]


def test_the_server_started_by_hand_looks_the_same() -> None:
    own = (ROOT / ".streamlit" / "config.toml").read_text(encoding="utf-8")
    assert own == (ROOT / "assets" / "streamlit.toml").read_text(encoding="utf-8")
    plain = tomllib.loads(own)
    for theme in THEMES:
        assert settings()[f"theme.{theme}.primaryColor"] == LOOKS[theme].accent
        assert plain["theme"][theme]["textColor"] == LOOKS[theme].text


def test_the_style_sheet_fetches_nothing() -> None:
    for theme in THEMES:
        assert not re.search(r"url\((?!data:)|@import|https?://", css(theme))
