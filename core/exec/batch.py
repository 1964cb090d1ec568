"""A scheduler output as packed tensors: what one forward needs.

All scheduled tokens lie one after another, sequence by sequence; nothing is padded. It does not
know the model or how attention uses the tensors.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from core.request import Sequence
from core.sched.output import ScheduledSequence
from kernels import dispatch

__all__ = ["BatchInputs", "PackedStep", "build", "pack"]


@dataclass(frozen=True, slots=True)
class BatchInputs:
    """The tensors of one step.

    Attributes:
        input_ids: `[num_tokens]`.
        positions: `[num_tokens]`.
        plan: slot mapping, block tables and lengths, checked and prepared for the kernels.
        logits_index: `[sampled]`, the packed row whose logits each sampled sequence needs.
        sampled: the sequences that get a token, in the order of `logits_index`.
    """

    input_ids: Tensor
    positions: Tensor
    plan: dispatch.KernelPlan
    logits_index: Tensor
    sampled: tuple[Sequence, ...]


@dataclass(frozen=True, slots=True)
class PackedStep:
    """A step's numbers on the host.

    Attributes:
        token_ids: num_tokens of them.
        positions: `[num_tokens]`.
        slots: `[num_tokens]`, where each token is stored.
        tables: `[num_seqs, max_blocks]`.
        seq_lens: context of each sequence with its new tokens.
        q_lens: new tokens of each sequence.
    """

    token_ids: list[int]
    positions: np.ndarray
    slots: np.ndarray
    tables: np.ndarray
    seq_lens: list[int]
    q_lens: list[int]


def build(
    scheduled: tuple[ScheduledSequence, ...],
    *,
    num_blocks: int,
    block_size: int,
    device: torch.device | str = "cpu",
    backend: dispatch.Backend = "auto",
) -> BatchInputs:
    """Packs the scheduled sequences, which are at least one.

    Raises:
        ValueError: a block table that is too short or names a block outside the pool.
    """
    packed = pack(scheduled, block_size)
    ends = np.cumsum(packed.q_lens)
    sampled = [index for index, item in enumerate(scheduled) if item.samples]
    return BatchInputs(
        input_ids=torch.tensor(packed.token_ids, device=device),
        positions=torch.from_numpy(packed.positions).to(device),
        plan=dispatch.prepare(
            torch.from_numpy(packed.slots),  # checked here, on the host
            torch.from_numpy(packed.tables),
            packed.seq_lens,
            packed.q_lens,
            num_blocks=num_blocks,
            block_size=block_size,
            backend=backend,
            device=device,
        ),
        logits_index=torch.from_numpy(ends[sampled] - 1).to(device),
        sampled=tuple(scheduled[index].seq for index in sampled),
    )


def pack(scheduled: SequenceOf[ScheduledSequence], block_size: int) -> PackedStep:
    """The numbers of the scheduled sequences, which are at least one.

    Raises:
        ValueError: a block table that is too short.
    """
    starts = np.array([item.start for item in scheduled])
    counts = np.array([item.num_tokens for item in scheduled])
    ends = counts.cumsum()
    owners = np.repeat(np.arange(len(scheduled)), counts)  # [num_tokens]
    positions = np.arange(ends[-1]) + np.repeat(starts - ends + counts, counts)  # [num_tokens]
    tables = _block_tables(scheduled)
    _check_tables(scheduled, block_size)
    token_ids: list[int] = []
    for item in scheduled:
        token_ids += item.seq.token_ids[item.start : item.start + item.num_tokens]
    return PackedStep(
        token_ids=token_ids,
        positions=positions,
        slots=tables[owners, positions // block_size] * block_size + positions % block_size,
        tables=tables,
        seq_lens=(starts + counts).tolist(),
        q_lens=counts.tolist(),
    )


def _block_tables(scheduled: SequenceOf[ScheduledSequence]) -> np.ndarray:
    """`[num_seqs, max_blocks]`, short tables padded with their own first block."""
    width = max(len(item.block_ids) for item in scheduled)
    tables = np.empty((len(scheduled), width), dtype=np.int64)
    for row, item in zip(tables, scheduled, strict=True):
        row[: len(item.block_ids)] = item.block_ids
        row[len(item.block_ids) :] = item.block_ids[0] if item.block_ids else 0
    return tables


def _check_tables(scheduled: SequenceOf[ScheduledSequence], block_size: int) -> None:
    for item in scheduled:
        room = len(item.block_ids) * block_size
        if item.start + item.num_tokens > room:
            raise ValueError(
                f"{item.seq.seq_id}: positions up to {item.start + item.num_tokens} don't fit "
                f"{len(item.block_ids)} blocks of {block_size}"
            )
