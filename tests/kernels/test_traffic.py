"""The picture of a decode step's traffic against the addresses that the kernel reads."""

from collections import defaultdict
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton isn't installed on this machine")

from kernels import triton_paged
from kernels.traffic import decode_programs
from kernels.triton_launch import interpreting
from tests.kernels.steps import Step

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="only the interpreter shows a kernel's addresses"
)
_TILE = 16  # of the interpreter's settings
Reads = dict[tuple[int, int, int], list[list[int]]]


def read_slots(
    step: Step, splits: int, window: int | None, monkeypatch: pytest.MonkeyPatch, cache: str
) -> Reads:
    """For each program, the slots that each of its loads took from a cache, in order."""
    from triton.runtime import interpreter

    tensor = getattr(step, cache)
    first, row = tensor.data_ptr(), tensor[0, 0].nbytes
    found: Reads = defaultdict(list)
    original = interpreter.InterpreterBuilder.create_masked_load

    def recorded(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        offsets = (ptrs.data.astype("int64") - first)[mask.data.astype(bool)]
        if offsets.size and 0 <= offsets[0] < tensor.nbytes:
            assert (offsets >= 0).all()
            assert (offsets < tensor.nbytes).all()
            found[tuple(self.grid_idx)].append(list(dict.fromkeys((offsets // row).tolist())))
        return original(self, ptrs, mask, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(interpreter.InterpreterBuilder, "create_masked_load", recorded)
        inner = step.plan("triton").step
        assert inner is not None
        triton_paged.paged_attention(
            step.query, step.keys, step.values, inner, 0.3, window, splits=splits
        )
    return found


@pytest.mark.parametrize(
    ("block_size", "splits", "window"), [(4, 1, None), (5, 3, None), (16, 2, 21), (1, 4, 50)]
)
def test_the_picture_names_the_blocks_that_each_program_reads_in_order(
    block_size: int, splits: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Step([1, 1, 1], [1, 37, 70], block_size=block_size)
    programs = decode_programs(
        step.seq_lens, step.tables.tolist(), block_size, 2, splits,
        tile=_TILE, sliding_window=window,
    )  # fmt: skip
    assert len(programs) == 3 * 2 * splits
    for cache in ("keys", "values"):
        reads = read_slots(step, splits, window, monkeypatch, cache)
        for program in programs:
            loads = reads.pop((program.seq, program.kv_head, program.split), [])
            blocks = tuple(tuple(dict.fromkeys(s // block_size for s in load)) for load in loads)
            assert blocks == program.tiles
            assert sum(map(len, loads)) == program.num_tokens
        assert not reads


def test_a_kernel_reads_only_slots_that_its_sequence_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step([1, 6], [37, 21], block_size=4)
    read = {
        slot
        for loads in read_slots(step, 2, None, monkeypatch, "keys").values()
        for load in loads
        for slot in load
    }
    assert read == set(step.written)
