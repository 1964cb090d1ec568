"""How the Triton kernels are cut for an architecture: a table of settings with defaults.

Nothing is ever measured here: a kernel runs with the table's entry, else with a default.
`kernels.triton_tune` measures, only when asked, and writes a table; `use_table` reads one, and so
does the start when the environment names it in GLASSBLOCK_KERNEL_TABLE.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

__all__ = [
    "Kernel",
    "Settings",
    "key_of",
    "settings_for",
    "split_count",
    "use_settings",
    "use_table",
    "write_table",
]

Kernel = Literal["decode", "prefill"]
# A share of a context under so many tokens isn't worth its part in the joining.
_SMALLEST_SHARE = 256
_MOST_SPLITS = 64


@dataclass(frozen=True, slots=True)
class Settings:
    """How a kernel is cut.

    Attributes:
        tile: tokens of the context in one turn of the loop.
        num_warps: warps of a program.
        num_stages: turns whose loads are under way at once.
        rows: (token, head) rows of a prefill program.
        waves: decode programs that each multiprocessor should get.
    """

    tile: int
    num_warps: int = 4
    num_stages: int = 2
    rows: int = 64
    waves: int = 4


_table: dict[str, Settings] = {}


def key_of(kernel: Kernel, dtype: str, head_dim: int, block_size: int, arch: str) -> str:
    """The name of a table's entry.

    >>> key_of("decode", "bfloat16", 128, 16, "sm90")
    'sm90/decode/bfloat16/128/16'
    """
    return f"{arch}/{kernel}/{dtype}/{head_dim}/{block_size}"


def settings_for(kernel: Kernel, dtype: str, head_dim: int, block_size: int, arch: str) -> Settings:
    """The table's entry, else the default."""
    found = _table.get(key_of(kernel, dtype, head_dim, block_size, arch))
    return found or _default(kernel, dtype, head_dim, arch)


def split_count(
    num_seqs: int, num_kv_heads: int, longest: int, multiprocessors: int, waves: int
) -> int:
    """Shares of each context: enough that every multiprocessor gets `waves` programs.

    >>> split_count(64, 8, 4096, 132, 4), split_count(1, 8, 4096, 132, 4)
    (2, 16)
    """
    wanted = -(-multiprocessors * waves // (num_seqs * num_kv_heads))
    return max(1, min(wanted, longest // _SMALLEST_SHARE, _MOST_SPLITS))


def use_settings(key: str, settings: Settings | None) -> None:
    """Takes settings for an entry in this process; None is the default again."""
    if settings is None:
        _table.pop(key, None)
    else:
        _table[key] = settings


def use_table(path: Path) -> int:
    """Takes the entries of a file over the defaults; a missing file has none.

    Returns:
        How many it holds.

    Raises:
        ValueError: the file holds something else.
    """
    if not path.is_file():
        return 0
    try:
        found = {name: Settings(**values) for name, values in json.loads(path.read_text()).items()}
    except (AttributeError, TypeError, ValueError) as fault:
        raise ValueError(f"{path} holds no table of kernel settings: {fault}") from fault
    _table.update(found)
    return len(found)


def write_table(path: Path, entries: dict[str, Settings]) -> None:
    """Adds entries to a file and to what this process uses."""
    use_table(path)
    _table.update(entries)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({k: asdict(v) for k, v in sorted(_table.items())}, indent=1) + "\n")


def _default(kernel: Kernel, dtype: str, head_dim: int, arch: str) -> Settings:
    """Fits K and V tiles and their stages into the multiprocessor's shared memory."""
    if arch == "interpreter":
        return Settings(tile=16, rows=16, num_stages=1, waves=4)
    row_bytes = max(64, head_dim) * (4 if dtype == "float32" else 2)
    wide = row_bytes > 256
    if arch.startswith("gfx"):  # 64 KB of shared memory
        return Settings(tile=16 if row_bytes > 512 else 32, num_stages=1 if wide else 2)
    if kernel == "prefill":
        return Settings(tile=32 if wide else 64, num_warps=8 if wide else 4, num_stages=2)
    return Settings(tile=32 if wide else 64, num_stages=2 if row_bytes > 512 else 3)


if "GLASSBLOCK_KERNEL_TABLE" in os.environ:
    use_table(Path(os.environ["GLASSBLOCK_KERNEL_TABLE"]))
