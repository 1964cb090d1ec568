"""One step's sequences as the Triton kernels want them: decodes apart, prefills in pieces.

Only index work, once a step and shared by all layers; it needs no Triton and no GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["Step", "make_step"]


@dataclass(frozen=True, slots=True)
class Step:
    """Which sequences decode and which prefill.

    Attributes:
        block_tables: `[num_seqs, max_blocks]`.
        seq_lens: `[num_seqs]`; 0 for a padding row of a captured graph.
        query_start_loc: `[num_seqs + 1]`.
        decode_seqs: `[num_decodes]`, indices of the sequences with one new token.
        num_decodes: its length.
        longest: the longest context of a decode, an upper bound.
        prefills: (sequence, new tokens) of the others.
        made: the pieces by their size.
    """

    block_tables: Tensor
    seq_lens: Tensor
    query_start_loc: Tensor
    decode_seqs: Tensor
    num_decodes: int
    longest: int
    prefills: tuple[tuple[int, int], ...]
    made: dict[int, Tensor] = field(default_factory=dict)

    def pieces(self, tokens: int) -> Tensor:
        """`[pieces, 2]`: the sequence and the first new token of each; the longest come first.

        Args:
            tokens: new tokens of a piece at most.
        """
        if tokens not in self.made:
            # A late piece attends to the most keys, so it starts first and nobody waits for it.
            found = [
                (seq, first) for seq, q_len in self.prefills for first in range(0, q_len, tokens)
            ]
            found.sort(key=lambda piece: -piece[1])
            self.made[tokens] = torch.tensor(
                found, dtype=torch.int32, device=self.seq_lens.device
            ).view(-1, 2)
        return self.made[tokens]


def make_step(
    block_tables: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    lengths: Sequence[int],
    q_lens: Sequence[int],
) -> Step:
    """The step of the given sequences.

    Args:
        block_tables: `[num_seqs, max_blocks]`, on the device.
        seq_lens: `[num_seqs]`, on the device.
        query_start_loc: `[num_seqs + 1]`, on the device.
        lengths: the same as `seq_lens`, on the host.
        q_lens: new tokens of each sequence.
    """
    decodes = [index for index, q_len in enumerate(q_lens) if q_len == 1]
    if block_tables.stride(-1) != 1:
        block_tables = block_tables.contiguous()
    return Step(
        block_tables=block_tables,
        seq_lens=seq_lens,
        query_start_loc=query_start_loc,
        decode_seqs=torch.tensor(decodes, dtype=torch.int32, device=seq_lens.device),
        num_decodes=len(decodes),
        longest=max((lengths[index] for index in decodes), default=0),
        prefills=tuple((index, q_len) for index, q_len in enumerate(q_lens) if q_len > 1),
    )
