"""The line of `glassblock simulate` that repeats a run, wherever the run was asked for.

It owns how such a line is written and how several are told as one. It does not know what the
options mean.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["simulate_command", "told_as_one"]

_DEFAULTS = {"block_size": 16, "max_num_seqs": 256, "max_num_batched_tokens": 2048,
             "semantics": "v1", "utilisation": 0.9}  # fmt: skip
_SYSTEMS = "@systems@"  # a word that no shell would quote
_FILES = ("model", "workload")


def simulate_command(options: Mapping[str, object]) -> str:
    """The line with these options; what every run has anyway is left out, and files' folders.

    >>> simulate_command({"workload": "some/where.csv", "limit": 5, "prefix_caching": False})
    'glassblock simulate --workload where.csv --limit 5 --no-prefix-caching'
    """
    words = ["glassblock", "simulate"]
    for name, value in options.items():
        if value is None or _DEFAULTS.get(name) == value:
            continue
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
            continue
        text = f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else value
        words += [f"--{flag}", Path(str(text)).name if name in _FILES else str(text)]
    return shlex.join(words)


def told_as_one(commands: Sequence[str]) -> str:
    """Lines that differ in the system only as one, the systems with bars between; "" for none.

    >>> told_as_one(["glassblock simulate --system a", "glassblock simulate --system b"])
    'glassblock simulate --system a|b'
    """
    found: dict[tuple[str, ...], list[str]] = {}
    for command in dict.fromkeys(filter(None, commands)):
        words = shlex.split(command)
        place = words.index("--system") + 1 if "--system" in words[:-1] else 0
        key = (*words[:place], _SYSTEMS, *words[place + 1 :]) if place else tuple(words)
        found.setdefault(key, []).append(words[place] if place else "")
    return "; ".join(
        shlex.join(key).replace(_SYSTEMS, "|".join(names)) for key, names in found.items()
    )
