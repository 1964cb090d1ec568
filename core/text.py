"""Sentences in the reader's language, from `assets/locale`.

`<language>.toml` holds what the core says (events and faults), `fragments/<area>.<language>.toml`
what an area adds. This module owns the lookup and the filling of templates. It does not know who
asks: errors, events and pages all name a key. A key that a language lacks falls back to English;
a test keeps the catalogues equal.

A template holds `{name}` (the value), `{name|token|tokens}` (the value and the word that fits its
number) and `{name#4}` (the value's first four characters). `**bold**` marks are left to the
reader's renderer. The player's JavaScript fills the same templates; a test compares the two.

A value that speaks itself (a `Phrase`, or a fault inside another one) is put in the same language.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

__all__ = ["LANGUAGES", "Phrase", "Speaks", "catalogue", "fill", "sentence", "spoken"]

LANGUAGES = ("en", "zh")
_LOCALE = Path(__file__).parents[1] / "assets" / "locale"
_SLOT = re.compile(r"\{(\w+)(?:\|([^|{}]*)\|([^|{}]*)|#(\d+))?\}")


@runtime_checkable
class Speaks(Protocol):
    """Anything with a wording in every language."""

    def sentence(self, lang: str = "en") -> str:
        """The wording in `lang`."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """A part of a sentence: a key of the catalogue and its values."""

    key: str
    values: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.sentence()

    def sentence(self, lang: str = "en") -> str:
        """The phrase in `lang`."""
        return sentence(self.key, lang, **self.values)


@cache
def catalogue(lang: str) -> Mapping[str, str]:
    """Every sentence of one language, keys flattened with dots (`error.empty_prompt`)."""
    if lang not in LANGUAGES:
        return catalogue("en")
    flat: dict[str, str] = {}
    for path in [_LOCALE / f"{lang}.toml", *sorted(_LOCALE.glob(f"fragments/*.{lang}.toml"))]:
        with path.open("rb") as file:
            flat.update(_flatten(tomllib.load(file)))
    return flat


def sentence(key: str, lang: str = "en", /, **values: object) -> str:
    """The sentence for `key` in `lang`, its values filled in."""
    template = catalogue(lang).get(key) or catalogue("en").get(key) or key
    return fill(template, spoken(values, lang))


def spoken(values: Mapping[str, object], lang: str = "en") -> dict[str, object]:
    """The values, those that speak themselves as their words in `lang`."""
    return {name: _spoken(value, lang) for name, value in values.items()}


def fill(template: str, values: Mapping[str, object]) -> str:
    """The template with its values.

    A value that is not given stays visible as `{name}`: a wrong template must not hide the event
    that it describes.

    >>> fill("copies {n|token|tokens} of #{hash#4}", {"n": 1, "hash": "52a7f141"})
    'copies 1 token of #52a7'
    """

    def one(match: re.Match[str]) -> str:
        name, singular, plural, length = match.groups()
        if name not in values:
            return "{" + name + "}"
        value = str(values[name])
        if length:
            return value[: int(length)]
        if singular is None:
            return value
        return f"{value} {singular if value == '1' else plural}"

    return _SLOT.sub(one, template)


def _spoken(value: object, lang: str) -> object:
    """The value in `lang`, without the full stop that the sentence around it brings."""
    return value.sentence(lang).rstrip(".。") if isinstance(value, Speaks) else value


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = str(value)
    return flat
