"""Moving whole blocks: copy-on-write copies, swaps to the host and back, each in one launch.

A block is moved as bytes, K and V of all layers at once: the storage is
`[caches, num_blocks, ...]` with one cache for each layer's K and each layer's V. A swap is the same
kernel with the other end in pinned host memory, which the GPU reaches by itself.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_launch import on_device

__all__ = ["copy_blocks", "independent_runs", "move_blocks", "move_kernel"]

_BYTES = 8192  # that a program moves
_Pairs = Sequence[tuple[int, int]]


def copy_blocks(storage: Tensor, pairs: _Pairs) -> None:
    """Copies blocks in every cache, as if one pair after the other; changes the storage.

    Args:
        storage: `[caches, num_blocks, ...]`.
        pairs: (source, destination) block ids.
    """
    for run in independent_runs(pairs):
        move_blocks(storage, storage, run)


def move_blocks(source: Tensor, destination: Tensor, pairs: _Pairs) -> None:
    """Copies blocks from one storage to another in one launch.

    Args:
        source: `[caches, num_blocks, ...]`, on the GPU or in pinned host memory.
        destination: the same but for its number of blocks; one of the two is on the GPU.
        pairs: (source, destination) block ids; none is both read and written.
    """
    if not pairs:
        return
    device = source.device if source.device.type != "cpu" else destination.device
    table = torch.tensor(pairs, dtype=torch.int64, device=device)  # [pairs, 2]
    block_bytes = source[0, 0].nbytes
    grid = (len(pairs), source.shape[0], triton.cdiv(block_bytes, _BYTES))
    with on_device(table):
        move_kernel[grid](
            source.view(torch.uint8), destination.view(torch.uint8), table,
            source.stride(0) * source.element_size(),
            destination.stride(0) * destination.element_size(),
            block_bytes, BYTES=_BYTES,
        )  # fmt: skip


def independent_runs(pairs: _Pairs) -> list[list[tuple[int, int]]]:
    """The pairs cut into runs, each of which gives the same in any order.

    >>> independent_runs([(0, 3), (1, 4), (3, 5)])
    [[(0, 3), (1, 4)], [(3, 5)]]
    """
    runs: list[list[tuple[int, int]]] = []
    read: set[int] = set()
    written: set[int] = set()
    for source, destination in pairs:
        if not runs or source in written or destination in written or destination in read:
            runs.append([])
            read, written = set(), set()
        runs[-1].append((source, destination))
        read.add(source)
        written.add(destination)
    return runs


@triton.jit
def move_kernel(
    source, destination, pairs, source_cache, destination_cache, block_bytes, BYTES: tl.constexpr
):  # fmt: skip
    """Program (pair, cache, piece of the block)."""
    pair = tl.program_id(0)
    cache = tl.program_id(1).to(tl.int64)
    read = tl.load(pairs + 2 * pair) * block_bytes + cache * source_cache
    written = tl.load(pairs + 2 * pair + 1) * block_bytes + cache * destination_cache
    place = tl.program_id(2) * BYTES + tl.arange(0, BYTES)
    piece = tl.load(source + read + place, mask=place < block_bytes)
    tl.store(destination + written + place, piece, mask=place < block_bytes)
