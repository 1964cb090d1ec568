"""Which blocks a decode step's kernel reads, in which order, program by program.

It mirrors the loop of `kernels.triton_decode.decode_kernel` exactly, in plain Python: a picture of
the memory traffic needs no GPU. A test compares it with the addresses that the kernel itself
reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["DecodeProgram", "decode_programs"]


@dataclass(frozen=True, slots=True)
class DecodeProgram:
    """One program's share of a decode step.

    Attributes:
        seq: index of the sequence.
        kv_head: whose K and V it reads.
        split: which share of the context.
        begin: first position that it reads.
        end: the position after the last; `begin` or less when the share is empty.
        tiles: for each turn of its loop, the physical blocks that it reads from, in order.
    """

    seq: int
    kv_head: int
    split: int
    begin: int
    end: int
    tiles: tuple[tuple[int, ...], ...]

    @property
    def blocks(self) -> tuple[int, ...]:
        """The physical blocks in the order of their first reading."""
        return tuple(dict.fromkeys(block for tile in self.tiles for block in tile))

    @property
    def num_tokens(self) -> int:
        """Tokens whose K and V it reads."""
        return max(0, self.end - self.begin)


def decode_programs(
    seq_lens: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    block_size: int,
    num_kv_heads: int,
    splits: int,
    *,
    tile: int = 64,
    sliding_window: int | None = None,
) -> tuple[DecodeProgram, ...]:
    """The programs of one decode step, in launch order: split by split, head by head.

    Args:
        seq_lens: context of each sequence with its new token.
        block_tables: physical blocks of each sequence, at least as many as its context needs.
        block_size: slots in a block.
        num_kv_heads: of the model.
        splits: shares of each context, as of `kernels.tuning.split_count`.
        tile: tokens of one turn of the loop.
        sliding_window: the query sees itself and the window - 1 positions before it.

    >>> [program.blocks for program in decode_programs([10], [[7, 3, 5]], 4, 1, 2, tile=4)]
    [(7, 3), (5,)]
    """
    return tuple(
        _program(seq, seq_lens[seq], block_tables[seq], block_size, head, split, splits, tile,
                 sliding_window)
        for split in range(splits)
        for head in range(num_kv_heads)
        for seq in range(len(seq_lens))
    )  # fmt: skip


def _program(
    seq: int,
    seq_len: int,
    table: Sequence[int],
    block_size: int,
    kv_head: int,
    split: int,
    splits: int,
    tile: int,
    window: int | None,
) -> DecodeProgram:
    first = 0 if window is None else max(seq_len - window, 0)
    tiles = -(-(seq_len - first) // tile)
    share = -(-tiles // splits) * tile
    begin = first + split * share
    end = min(begin + share, seq_len)
    turns = []
    for start in range(begin, end, tile):
        last = min(start + tile, end) - 1
        turns.append(tuple(table[start // block_size : last // block_size + 1]))
    return DecodeProgram(seq, kv_head, split, begin, end, tuple(turns))
