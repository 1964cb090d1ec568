"""Faults in the words of the command line: a setting is called by the flag that was typed.

The library names settings by their fields (`num_blocks`), because it knows no command line. It
owns the way from such a fault to its one English sentence with flags. It does not know the
commands: a parser hands in what it calls its settings.
"""

import re
from collections.abc import Mapping

from core.errors import GlassblockError
from core.text import catalogue, fill, spoken

__all__ = ["Flags", "fault_text", "with_flags"]

Flags = Mapping[str, str]
"""A setting's field, and the flag that sets it."""

# Faults that name a setting by a value, and these values.
_NAMING = {"bench_turns", "choice", "number", "range", "switch", "two_pool_sizes", "whole_number"}
_NAMES = ("name", "first", "second")
_SLOT = re.compile(r"(\{[^{}]*\})")
_SETTING = re.compile(r"(?<![\w-])([a-z]+)=(\w+)|(?<![\w-])([a-z]+(?:_[a-z]+)+)(?!\w)")


def fault_text(fault: GlassblockError, flags: Flags) -> str:
    """The fault as one sentence for someone at the command line.

    `cli.error` of the catalogue holds the sentences that need other words here.
    """
    known = catalogue("en")
    template = known.get(f"cli.error.{fault.code}") or known.get(f"error.{fault.code}")
    if template is None:
        return fault.sentence()
    values = spoken(fault.values)
    if fault.code in _NAMING:
        values |= {name: flags.get(str(values[name]), values[name])
                   for name in _NAMES if name in values}  # fmt: skip
    return fill(with_flags(template, flags), values)


def with_flags(text: str, flags: Flags) -> str:
    """A sentence of the library with the settings in it called by their flags.

    Only words that can be nothing else are taken: `semantics=paper`, or a name with an underscore.

    >>> with_flags("enlarge num_blocks {num_blocks}: semantics=v1", {"num_blocks": "--num-blocks",
    ...            "semantics": "--semantics"})
    'enlarge --num-blocks {num_blocks}: --semantics v1'
    """

    def one(match: re.Match[str]) -> str:
        name, value, alone = match.groups()
        flag = flags.get(name or alone)
        if flag is None:
            return match[0]
        return f"{flag} {value}" if value else flag

    parts = _SLOT.split(text)
    return "".join(p if p.startswith("{") else _SETTING.sub(one, p) for p in parts)
