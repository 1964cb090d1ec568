"""Where a machine's tuned kernel settings are kept, and how a model asks for its own.

The kernels run well with their defaults; `tune_kernels` finds better ones for a model's shape on
this GPU when somebody asks for it, and every later engine reads them from the cache folder. It
does not know how settings are measured.
"""

from pathlib import Path

import torch

from core.errors import ConfigError
from core.exec.model import ModelInfo
from core.exec.tune import cache_dir
from kernels import tuning
from kernels.dispatch import choose_backend

__all__ = ["load_table", "table_path", "tune_kernels"]


def table_path() -> Path:
    """The file in the cache folder; made by `tune_kernels`."""
    return cache_dir() / "kernels.json"


def load_table() -> int:
    """Takes the kept settings; a file that can't be read is as good as none.

    Returns:
        How many there are.
    """
    try:
        return tuning.use_table(table_path())
    except (OSError, ValueError):
        return 0


def tune_kernels(info: ModelInfo, block_size: int) -> dict[str, float]:
    """Measures and keeps the fastest settings for a model: a minute or so of the whole GPU.

    Returns:
        Seconds of one call with them, by entry.

    Raises:
        ConfigError: the model's device runs no Triton kernels.
    """
    try:
        choose_backend("triton", info.device)
    except ValueError as fault:
        raise ConfigError("no_kernel_tuning", detail=str(fault)) from fault
    from kernels.triton_tune import TuneShape, tune

    shape = TuneShape(
        num_heads=info.heads,
        num_kv_heads=info.kv_heads,
        head_dim=info.head_dim,
        block_size=block_size,
        dtype=getattr(torch, info.dtype),
    )
    found = tune(table_path(), shape, device=info.device)
    return {key: seconds for key, (_, seconds) in found.items()}
