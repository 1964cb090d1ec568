"""The KV cache's memory: K and V of every layer on the device, and the swap space on the host.

One tensor holds all layers, so that a copy or a swap moves a block's K and V of every layer at
once. An fp8 cache has scales of 1: no checkpoint is read for others. It does not know who owns a
block, nor which blocks are free.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import dispatch
from kernels.dispatch import Backend
from kernels.fp8 import FP8, KVScales, unit_scales

__all__ = ["KVShape", "KVTensors"]

_Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class KVShape:
    """What a model stores for a token: `layers` x K and V x `kv_heads` x `head_dim` of `dtype`.

    >>> KVShape(layers=30, kv_heads=3, head_dim=64, dtype=torch.float32).block_bytes(16)
    737280
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    def block_bytes(self, block_size: int) -> int:
        """Bytes of one block over all layers, K and V."""
        token = 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize
        return token * block_size


class KVTensors:
    """Device blocks and host blocks of one engine."""

    def __init__(
        self,
        shape: KVShape,
        *,
        num_blocks: int,
        block_size: int,
        num_host_blocks: int = 0,
        device: torch.device | str = "cpu",
        backend: Backend = "auto",
    ) -> None:
        self.shape = shape
        self._backend = backend
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._storage = _allocate(shape, num_blocks, block_size, torch.device(device))
        self._host = _allocate(shape, num_host_blocks, block_size, torch.device("cpu"))
        if self._storage.is_cuda and num_host_blocks:
            self._host = self._host.pin_memory()  # which the GPU reaches by itself
        # Views made once: slicing in every layer of every step would cost more than the copy.
        self._layers = [(layer[0], layer[1]) for layer in self._storage]
        self.scales: KVScales | None = None  # of every layer of an fp8 cache
        if shape.dtype == FP8:
            self.scales = unit_scales(shape.kv_heads, self._storage.device)

    @property
    def device(self) -> torch.device:
        """Where the device blocks are."""
        return self._storage.device

    @property
    def num_bytes(self) -> int:
        """Bytes of the device blocks."""
        return self._storage.nbytes

    def block_bytes(self) -> int:
        """Bytes of one block over all layers, K and V."""
        return self.shape.block_bytes(self.block_size)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """K and V of one layer, each `[num_blocks, block_size, kv_heads, head_dim]`."""
        return self._layers[index]

    def copy(self, pairs: _Pairs) -> None:
        """Copies device blocks (source, destination), one pair after the other."""
        if pairs:
            dispatch.copy_blocks(self._storage.flatten(0, 1), pairs, backend=self._backend)

    def swap_out(self, pairs: _Pairs) -> None:
        """Copies (device block, host block) to the host."""
        self._move(self._storage, self._host, pairs)

    def swap_in(self, pairs: _Pairs) -> None:
        """Copies (host block, device block) back."""
        self._move(self._host, self._storage, pairs)

    def _move(self, source: Tensor, destination: Tensor, pairs: _Pairs) -> None:
        if pairs:
            dispatch.move_blocks(
                source.flatten(0, 1), destination.flatten(0, 1), pairs, backend=self._backend
            )  # [2 x layers, blocks, ...]


def _allocate(shape: KVShape, blocks: int, block_size: int, device: torch.device) -> Tensor:
    # Zeros, not empty memory: a stray NaN in a slot that attention masks out would still spread.
    return torch.zeros(
        (shape.layers, 2, blocks, block_size, shape.kv_heads, shape.head_dim),
        dtype=shape.dtype,
        device=device,
    )
