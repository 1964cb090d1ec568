"""Random steps for the kernels: permuted blocks, and NaN in every slot that nobody wrote."""

import random

import torch
from torch import Tensor

from kernels import dispatch
from kernels.fp8 import FP8, KVScales, make_scales, quantise

# q_lens and seq_lens of each sequence: a lone first token, decodes, fresh and continued prefills.
STEPS = {
    "decodes": ([1, 1, 1, 1], [1, 17, 40, 33]),
    "long and short decodes": ([1] * 6, [900, 3, 5, 1, 880, 7]),
    "fresh prefills": ([7, 1, 33], [7, 1, 33]),
    "continued prefills": ([5, 16, 2], [9, 48, 31]),
    "mixed": ([1, 12, 1, 64, 3], [20, 12, 1, 100, 8]),
}


class Step:
    """Random caches and queries with permuted blocks; unwritten slots hold NaN."""

    def __init__(
        self,
        q_lens: list[int],
        seq_lens: list[int],
        *,
        block_size: int,
        num_kv_heads: int = 2,
        group: int = 2,
        head_dim: int = 8,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        rng = random.Random(seed)
        torch.manual_seed(seed)
        self.q_lens, self.seq_lens, self.block_size = q_lens, seq_lens, block_size
        self.device = device
        self.scales: KVScales | None = None
        counts = [-(-length // block_size) for length in seq_lens]
        self.num_blocks = sum(counts) + 3
        ids = rng.sample(range(self.num_blocks), sum(counts))
        self.tables = torch.tensor(
            [[ids.pop() for _ in range(count)] + [0] * (max(counts) - count) for count in counts]
        )
        shape = (self.num_blocks * block_size, num_kv_heads, head_dim)
        self.keys = torch.full(shape, float("nan"), dtype=dtype)
        self.values = torch.full(shape, float("nan"), dtype=dtype)
        written = self.written
        self.keys[written] = torch.randn(len(written), num_kv_heads, head_dim).to(dtype)
        self.values[written] = torch.randn(len(written), num_kv_heads, head_dim).to(dtype)
        shape = (self.num_blocks, block_size, num_kv_heads, head_dim)
        self.keys, self.values = (
            self.keys.view(shape).to(device),
            self.values.view(shape).to(device),
        )
        self.query = torch.randn(sum(q_lens), num_kv_heads * group, head_dim).to(dtype).to(device)

    def _slots(self, firsts: list[int]) -> list[int]:
        size = self.block_size
        return [
            table[position // size] * size + position % size
            for table, first, length in zip(
                self.tables.tolist(), firsts, self.seq_lens, strict=True
            )
            for position in range(first, length)
        ]

    @property
    def written(self) -> list[int]:
        """Slots that hold a token."""
        return self._slots([0] * len(self.seq_lens))

    @property
    def slots(self) -> Tensor:
        """Slots of the new tokens."""
        lengths = zip(self.seq_lens, self.q_lens, strict=True)
        return torch.tensor(self._slots([length - q_len for length, q_len in lengths]))

    def to_fp8(self, *, per_head: bool) -> "Step":
        """The same step with an fp8 cache."""
        shape = self.keys.shape
        keys, values = self.keys.flatten(0, 1), self.values.flatten(0, 1)
        self.scales = make_scales(keys.nan_to_num(), values.nan_to_num(), per_head=per_head)
        self.keys = quantise(keys, self.scales.key).view(shape)
        self.values = quantise(values, self.scales.value).view(shape)
        assert self.keys.dtype == FP8
        return self

    def plan(self, backend: dispatch.Backend, *, debug: bool = False) -> dispatch.KernelPlan:
        return dispatch.prepare(
            self.slots,
            self.tables,
            self.seq_lens,
            self.q_lens,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            backend=backend,
            device=self.device,
            debug=debug,
        )

    def attend(
        self, backend: dispatch.Backend, window: int | None = None, softcap: float | None = None
    ) -> Tensor:
        plan = self.plan(backend)
        return dispatch.paged_attention(
            self.query, self.keys, self.values, plan, 0.3, window, softcap, self.scales
        )

    def mass(
        self, backend: dispatch.Backend, window: int | None = None, softcap: float | None = None
    ) -> Tensor:
        plan = self.plan(backend)
        return dispatch.block_mass(self.query, self.keys, plan, 0.3, window, softcap, self.scales)
