"""Both catalogues say the same things; every fault and every event has its sentence."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from core.text import LANGUAGES, catalogue, fill, sentence

_ROOT = Path(__file__).parents[1]
_LOCALE = _ROOT / "assets" / "locale"
_SLOT = re.compile(r"\{(\w+)")


def _slots(template: str) -> set[str]:
    return set(_SLOT.findall(template))


def test_both_languages_have_the_same_keys() -> None:
    assert set(catalogue("en")) == set(catalogue("zh"))
    assert len(catalogue("en")) > 100


@pytest.mark.parametrize("key", sorted(catalogue("en")))
def test_a_sentence_names_the_same_values_in_both_languages(key: str) -> None:
    assert _slots(catalogue("en")[key]) == _slots(catalogue("zh").get(key, ""))
    for lang in LANGUAGES:
        text = catalogue(lang)[key]
        assert text.strip() == text != ""
        assert text.count("**") % 2 == 0


def test_fragments_come_in_pairs_and_never_say_a_thing_twice() -> None:
    for lang in LANGUAGES:
        seen: dict[str, str] = {}
        for path in [_LOCALE / f"{lang}.toml", *_LOCALE.glob(f"fragments/*.{lang}.toml")]:
            for key in _keys(tomllib.loads(path.read_text(encoding="utf-8"))):
                assert key not in seen, f"{key} in {path.name} and {seen[key]}"
                seen[key] = path.name
    names = {path.name.split(".")[0] for path in _LOCALE.glob("fragments/*.toml")}
    for name in names:
        for lang in LANGUAGES:
            assert (_LOCALE / "fragments" / f"{name}.{lang}.toml").exists()


def _keys(table: dict[str, object], prefix: str = "") -> list[str]:
    keys = []
    for name, value in table.items():
        if isinstance(value, dict):
            keys.extend(_keys(value, f"{prefix}{name}."))
        else:
            keys.append(prefix + name)
    return keys


def test_every_fault_that_the_code_raises_has_a_sentence_with_its_values() -> None:
    faults = 0
    for package in ("app", "core", "kernels", "lessons"):
        for path in (_ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                    continue
                if not node.func.id.endswith("Error") or not node.args:
                    continue
                first = node.args[0]
                if node.func.id in ("InvariantError",) or not isinstance(first, ast.Constant):
                    continue
                if node.func.id not in _OURS:
                    continue
                faults += 1
                key = f"error.{first.value}"
                assert key in catalogue("en"), f"{path.name}:{node.lineno} {key}"
                given = {word.arg for word in node.keywords if word.arg}
                if all(word.arg for word in node.keywords):
                    missing = _slots(catalogue("en")[key]) - given
                    assert not missing, f"{path.name}:{node.lineno} {key} lacks {missing}"
    assert faults > 30


_OURS = {"ConfigError", "RequestError", "ModelError", "TraceError", "WorkloadError", "LimitError"}


def test_every_refusal_has_a_sentence_for_the_user() -> None:
    for code in (
        "too_long",
        "never_fits",
        "over_budget",
        "too_many_sequences",
        "wider_than_budget",
    ):
        assert f"error.{code}" in catalogue("en")
        assert f"event.RequestRejected.{code}" in catalogue("en")


def test_an_unknown_language_reads_english_and_an_unknown_key_stays_visible() -> None:
    assert catalogue("xx") == catalogue("en")
    assert sentence("error.no_such_thing", "zh") == "error.no_such_thing"
    assert fill("{a} {b|one|many} {c#2}", {"a": 1, "b": 1, "c": "wxyz"}) == "1 1 one wx"
    assert fill("{a}", {}) == "{a}"
    assert fill("{a}", {"a": "{b}", "b": 3}) == "{b}"
