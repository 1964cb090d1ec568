"""Systems that a workload can be sent through: paging, and what the paper compared it with.

It owns their names and what each sets in `EngineConfig`, and sizes the pool: all systems get
equally many slots. It does not know the model; a slot's bytes and the memory's are given.
"""

from collections.abc import Mapping
from typing import Any

from core.checks import check_number
from core.config import EngineConfig
from core.errors import ConfigError

__all__ = ["DEFAULT_BLOCK_SIZE", "SYSTEMS", "system_config"]

DEFAULT_BLOCK_SIZE = 16
_MOST_BLOCKS = 1 << 24  # that `EngineConfig` takes
_ORCA = {"allocator": "contiguous", "placement": "buddy", "batching": "continuous"}
# Orca (SOSP'23, section 6.1) is continuous batching over regions placed by a buddy allocator: as
# long as any answer could be, as the next power of two of this one, or as this one really is.
SYSTEMS: Mapping[str, Mapping[str, Any]] = {
    "paged": {"allocator": "paged", "batching": "continuous"},
    "orca-max": _ORCA | {"reserve": "max"},
    "orca-pow2": _ORCA | {"reserve": "pow2"},
    "orca-oracle": _ORCA | {"reserve": "exact"},
    "static": {
        "allocator": "contiguous",
        "placement": "first_fit",
        "batching": "static",
        "reserve": "max",
    },
}
# What a server of vLLM starts with.
_SERVER = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}


def system_config(
    system: str,
    *,
    num_slots: int | None = None,
    num_blocks: int | None = None,
    block_size: int | None = None,
    memory_slots: int = 0,
    **settings: Any,
) -> EngineConfig:
    """The settings of a named system with its pool.

    Args:
        system: a name of `SYSTEMS`.
        num_slots: slots that requests can own.
        num_blocks: the pool in blocks instead; contiguous memory gets the slots of as many blocks.
        block_size: tokens a block; contiguous memory only counts `num_blocks` in it.
        memory_slots: slots that the device has room for, when neither size is given.
        settings: anything else that `EngineConfig` takes.

    Raises:
        ConfigError: an unknown system, two sizes, or a setting that can't work.
    """
    if system not in SYSTEMS:
        raise ConfigError("unknown_system", name=system, known=", ".join(SYSTEMS))
    if num_slots is not None and num_blocks is not None:
        raise ConfigError("slots_and_blocks")
    chosen = {**_SERVER, **settings, **SYSTEMS[system]}
    size = DEFAULT_BLOCK_SIZE if block_size is None else block_size
    check_number("block_size", size, 1, 1024)
    if num_slots is not None:
        blocks_of = 1 if chosen["allocator"] == "contiguous" else size
        check_number("num_slots", num_slots, 2 * size, (_MOST_BLOCKS - 1) * blocks_of)
    null = int(chosen.get("semantics", "v1") == "v1")  # "v1" keeps block 0 for itself
    if chosen["allocator"] == "contiguous":
        slots = num_slots if num_slots is not None else memory_slots
        if num_blocks is not None:
            slots = (num_blocks - null) * size
        return EngineConfig(block_size=1, num_blocks=slots + null, **chosen)
    if num_slots is not None:
        num_blocks = num_slots // size + null
    blocks = memory_slots // size if num_blocks is None else num_blocks
    return EngineConfig(block_size=size, num_blocks=blocks, **chosen)
