"""Sentences in the reader's language, from `assets/locale/<language>.toml`.

It owns the lookup and the filling of named values. It does not know who asks: errors, events and
pages all name a key. A key that a language lacks falls back to English, so a missing translation
is visible but never fatal; a test keeps the catalogues equal.
"""

import string
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["LANGUAGES", "catalogue", "sentence"]

LANGUAGES = ("en", "zh")
_LOCALE = Path(__file__).parents[1] / "assets" / "locale"


@cache
def catalogue(lang: str) -> Mapping[str, str]:
    """Every sentence of one language, keys flattened with dots (`error.empty_prompt`)."""
    if lang not in LANGUAGES:
        return catalogue("en")
    with (_LOCALE / f"{lang}.toml").open("rb") as file:
        return _flatten(tomllib.load(file))


def sentence(key: str, lang: str = "en", /, **values: object) -> str:
    """The sentence for `key` with its `{named}` values filled in.

    A value that the caller did not give stays visible as `{name}`: a wrong template must not
    hide the event that it describes.
    """
    template = catalogue(lang).get(key) or catalogue("en").get(key) or key
    return string.Formatter().vformat(template, (), _Lenient(values))


class _Lenient(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return "{" + key + "}"


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = str(value)
    return flat
