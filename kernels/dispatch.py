"""The door to the kernels: checks a step's tensors once, then runs the chosen backend.

`prepare` checks shapes, ranges and devices and does the index work of a step; `write_kv` and
`paged_attention` then run for every layer with that plan and check only what a layer can change.
`prepare_buffers` makes a plan whose tensors stay where they are, for a captured graph; `refill`
puts a step into it.

Backends: "reference" is the plain one, "torch" runs anywhere, "triton" on a GPU (or, slowly, in
Triton's interpreter), "numba" on a CPU; "auto" is "triton" or "numba" where they can be, else
"torch". Triton and numba are imported when they are first chosen: they need not be installed.

In debug mode (`debug=True`, or GLASSBLOCK_DEBUG=1 in the environment) every call checks the slots
and block tables again as they then are, and the Triton kernels leave out blocks outside the pool,
so that a wrong table can't read foreign memory. Faults are plain `ValueError`s.
"""

import importlib
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from kernels import checks, reference, torch_paged
from kernels.fp8 import FP8, KVScales
from kernels.triton_launch import interpreting
from kernels.triton_step import Step, make_step

if TYPE_CHECKING:
    from kernels.numba_paged import Decodes

__all__ = [
    "COMPILED_DTYPES",
    "Backend",
    "KernelPlan",
    "RealBackend",
    "block_mass",
    "choose_backend",
    "copy_blocks",
    "has_compiled",
    "move_blocks",
    "paged_attention",
    "prepare",
    "prepare_buffers",
    "refill",
    "write_kv",
]

Backend = Literal["auto", "reference", "torch", "triton", "numba"]
RealBackend = Literal["reference", "torch", "triton", "numba"]
_BACKENDS = ("auto", "reference", "torch", "triton", "numba")
# What backend "numba" has loops for.
COMPILED_DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """One step's checked index tensors, shared by all layers.

    Attributes:
        backend: the backend that runs.
        slot_mapping: `[num_tokens]`.
        block_tables: `[num_seqs, max_blocks]`.
        seq_lens: `[num_seqs]`.
        query_start_loc: `[num_seqs + 1]`.
        groups: the padded batches of the torch backend, and of numba's prefills; else empty.
        decodes: the numba backend's sequences with one new token; None for the others.
        step: the Triton kernels' own index work; None for the others.
        debug: check again at every call.
    """

    backend: RealBackend
    cache_shape: tuple[int, int]
    slot_mapping: Tensor
    block_tables: Tensor
    seq_lens: Tensor
    query_start_loc: Tensor
    groups: tuple[torch_paged.Group, ...] = ()
    decodes: "Decodes | None" = None
    step: Step | None = None
    debug: bool = False

    @property
    def num_tokens(self) -> int:
        """Packed tokens of the step."""
        return self.slot_mapping.shape[0]


def choose_backend(
    backend: Backend, device: torch.device | str, cache_dtype: torch.dtype | None = None
) -> RealBackend:
    """The backend that runs on a device.

    Args:
        backend: what is asked for.
        device: where the caches are.
        cache_dtype: of the caches; None is any that the device has arithmetic for.

    Raises:
        ValueError: an unknown backend, or one that can't run there or with such caches.
    """
    if backend not in _BACKENDS:
        names = ", ".join(repr(name) for name in _BACKENDS)
        raise ValueError(f"backend {backend!r} is not one of {names}")
    kind = torch.device(device).type
    on_gpu = kind == "cuda"  # torch's name for AMD's GPUs too
    if cache_dtype == FP8 and kind not in ("cpu", "cuda"):
        raise ValueError(
            f"an fp8 cache can't be on {device}, which stores no such numbers: "
            "take kv_cache_dtype 'auto' or another device"
        )
    if backend == "auto":
        if on_gpu and _has_triton():
            return "triton"
        return "numba" if kind == "cpu" and has_compiled(cache_dtype) else "torch"
    if backend == "numba":
        _check_numba(kind, cache_dtype)
    if backend != "triton":
        return backend
    if not _has_triton():
        raise ValueError(
            "backend 'triton' needs the package triton, which is not installed here: "
            "install it or take backend 'torch'"
        )
    if not on_gpu and not interpreting():
        raise ValueError(
            f"backend 'triton' needs a GPU, the tensors are on {device}: take backend 'torch' "
            "(or set TRITON_INTERPRET=1 before the start to run the kernels slowly without one)"
        )
    return "triton"


def has_compiled(dtype: torch.dtype | None) -> bool:
    """Whether the loops of backend "numba" can be had for a dtype; compiles them when they can."""
    if dtype not in COMPILED_DTYPES or not _has_numba():
        return False
    from kernels import numba_paged

    return numba_paged.usable(dtype)


def prepare(
    slot_mapping: Tensor,
    block_tables: Tensor,
    seq_lens: Sequence[int],
    q_lens: Sequence[int],
    *,
    num_blocks: int,
    block_size: int,
    backend: Backend = "auto",
    device: torch.device | str | None = None,
    debug: bool | None = None,
) -> KernelPlan:
    """Checks a step and does its index work.

    Args:
        slot_mapping: `[num_tokens]`, the slot that each new token is stored in.
        block_tables: `[num_seqs, max_blocks]`; entries past a sequence's end may be anything in
            range.
        seq_lens: context of each sequence with its new tokens.
        q_lens: new tokens of each sequence.
        num_blocks: blocks in the caches.
        block_size: slots in a block.
        backend: "auto" takes the fastest that runs on the device.
        device: where the caches are; None is where the index tensors are. Index tensors on the
            host are checked without waiting for a GPU.
        debug: check again at every call; None asks the environment.

    Raises:
        ValueError: a wrong shape, dtype, device or range.
    """
    place = slot_mapping.device if device is None else torch.device(device)
    chosen = choose_backend(backend, place)
    _check_step(slot_mapping, block_tables, seq_lens, q_lens, num_blocks, block_size)
    starts = torch.zeros(len(q_lens) + 1, dtype=torch.int64)
    starts[1:] = torch.tensor(q_lens, dtype=torch.int64).cumsum(0)
    tables = block_tables.to(place)
    lengths = torch.tensor(seq_lens, dtype=torch.int64, device=place)
    starts = starts.to(place)
    return KernelPlan(
        backend=chosen,
        cache_shape=(num_blocks, block_size),
        slot_mapping=slot_mapping.to(place).long(),
        block_tables=tables,
        seq_lens=lengths,
        query_start_loc=starts,
        groups=_groups(chosen, tables, seq_lens, q_lens, block_size),
        decodes=_decodes(tables, seq_lens, q_lens) if chosen == "numba" else None,
        step=make_step(tables, lengths, starts, seq_lens, q_lens) if chosen == "triton" else None,
        debug=os.environ.get("GLASSBLOCK_DEBUG") == "1" if debug is None else debug,
    )


def prepare_buffers(
    num_seqs: int,
    max_blocks: int,
    *,
    num_blocks: int,
    block_size: int,
    device: torch.device | str,
    backend: Backend = "auto",
    within: KernelPlan | None = None,
) -> KernelPlan:
    """A plan of up to `num_seqs` decodes whose tensors never move; all rows are padding yet.

    Args:
        num_seqs: its rows.
        max_blocks: of the longest block table.
        num_blocks: blocks in the caches.
        block_size: slots in a block.
        device: where the caches are.
        backend: of `choose_backend`.
        within: a larger plan whose buffers this one shares: only one of the two is in use.

    Raises:
        ValueError: backend torch or numba, which plans a step on the host.
    """
    chosen = choose_backend(backend, device)
    if chosen in ("torch", "numba"):
        raise ValueError(f"backend {chosen!r} can't keep its plan in buffers: take 'triton'")
    if within is None:
        slots = torch.full((num_seqs,), -1, dtype=torch.int64, device=device)
        tables = torch.zeros((num_seqs, max_blocks), dtype=torch.int64, device=device)
        lengths = torch.zeros(num_seqs, dtype=torch.int64, device=device)
        starts = torch.arange(num_seqs + 1, device=device)
    else:
        slots, tables = within.slot_mapping[:num_seqs], within.block_tables[:num_seqs]
        lengths, starts = within.seq_lens[:num_seqs], within.query_start_loc[: num_seqs + 1]
    longest = [max_blocks * block_size] * num_seqs
    return KernelPlan(
        backend=chosen,
        cache_shape=(num_blocks, block_size),
        slot_mapping=slots,
        block_tables=tables,
        seq_lens=lengths,
        query_start_loc=starts,
        step=make_step(tables, lengths, starts, longest, [1] * num_seqs)
        if chosen == "triton"
        else None,
    )


def refill(
    plan: KernelPlan, slot_mapping: Tensor, block_tables: Tensor, seq_lens: Sequence[int]
) -> None:
    """Puts a step of decodes into a plan of `prepare_buffers`; the rest becomes padding.

    Args:
        plan: changed.
        slot_mapping: `[n]` on the host, n at most the plan's rows.
        block_tables: `[n, blocks]` on the host.
        seq_lens: n contexts with their new token.

    Raises:
        ValueError: a wrong shape, dtype or range, or more than the plan has room for.
    """
    count, width = block_tables.shape
    if count > plan.num_tokens or width > plan.block_tables.shape[1]:
        raise ValueError(
            f"{count} decodes with up to {width} blocks don't fit a plan of "
            f"{plan.num_tokens} with {plan.block_tables.shape[1]}"
        )
    _check_step(slot_mapping, block_tables, seq_lens, [1] * count, *plan.cache_shape)
    padded = torch.full((plan.num_tokens,), -1, dtype=torch.int64)
    padded[:count] = slot_mapping
    plan.slot_mapping.copy_(padded)
    lengths = torch.zeros(plan.num_tokens, dtype=torch.int64)
    lengths[:count] = torch.tensor(seq_lens)
    plan.seq_lens.copy_(lengths)
    plan.block_tables[:count, :width].copy_(block_tables)


def write_kv(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: KernelPlan,
    scales: KVScales | None = None,
) -> None:
    """Stores the step's keys and values in their slots; changes the caches.

    Args:
        key: `[num_tokens, num_kv_heads, head_dim]`.
        value: as `key`.
        key_cache: `[num_blocks, block_size, num_kv_heads, head_dim]`.
        value_cache: as `key_cache`.
        plan: of `prepare`.
        scales: of an fp8 cache.

    Raises:
        ValueError: a shape, dtype or device that differs from the caches' or the plan's.
    """
    _check_layer(key_cache, value_cache, plan, scales)
    checks.check_new_kv(key, value, key_cache, plan.num_tokens)
    if plan.backend == "torch":
        torch_paged.write_kv(key, value, key_cache, value_cache, plan.slot_mapping, scales)
    elif plan.backend == "reference":
        reference.write_kv(key, value, key_cache, value_cache, plan.slot_mapping, scales)
    elif plan.backend == "numba":
        from kernels import numba_paged

        numba_paged.write_kv(key, value, key_cache, value_cache, plan.slot_mapping)
    else:
        from kernels import triton_write

        triton_write.write_kv(
            key, value, key_cache, value_cache, plan.slot_mapping, scales, checked=plan.debug
        )


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: KernelPlan,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    scales: KVScales | None = None,
) -> Tensor:
    """Causal attention of the step's tokens over their contexts.

    Args:
        query: `[num_tokens, num_heads, head_dim]`; num_heads is a multiple of num_kv_heads.
        key_cache: `[num_blocks, block_size, num_kv_heads, head_dim]`.
        value_cache: as `key_cache`.
        plan: of `prepare`.
        scale: factor on the scores.
        sliding_window: a query sees itself and the window - 1 positions before it.
        softcap: scores become softcap * tanh(score / softcap).
        scales: of an fp8 cache.

    Returns:
        `[num_tokens, num_heads, head_dim]`.

    Raises:
        ValueError: a shape or dtype that differs from the caches' or the plan's.
    """
    _check_layer(key_cache, value_cache, plan, scales)
    checks.check_query(query, key_cache, plan.num_tokens, sliding_window)
    if plan.backend == "torch":
        return torch_paged.paged_attention(
            query, key_cache, value_cache, plan.groups, scale, sliding_window, softcap, scales
        )
    if plan.backend == "numba":
        from kernels import numba_paged

        return numba_paged.paged_attention(
            query, key_cache, value_cache, plan.groups, plan.decodes, scale, sliding_window, softcap
        )
    if plan.step is not None:
        from kernels import triton_paged

        return triton_paged.paged_attention(
            query, key_cache, value_cache, plan.step, scale, sliding_window, softcap, scales,
            checked=plan.debug,
        )  # fmt: skip
    return reference.paged_attention(
        query, key_cache, value_cache, plan.block_tables, plan.seq_lens, plan.query_start_loc,
        scale, sliding_window, softcap, scales,
    )  # fmt: skip


def block_mass(
    query: Tensor,
    key_cache: Tensor,
    plan: KernelPlan,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    scales: KVScales | None = None,
) -> Tensor:
    """How much of its attention each sequence's last query gives to each of its blocks.

    Args: as of `paged_attention`.

    Returns:
        `[num_seqs, num_heads, max_blocks]` float32; 0 past a sequence's end, and rows sum to 1.

    Raises:
        ValueError: a shape or dtype that differs from the cache's or the plan's.
    """
    _check_layer(key_cache, key_cache, plan, scales)
    checks.check_query(query, key_cache, plan.num_tokens, sliding_window)
    if plan.step is not None:
        from kernels import triton_paged

        return triton_paged.block_mass(
            query, key_cache, plan.step, scale, sliding_window, softcap, scales,
            checked=plan.debug,
        )  # fmt: skip
    return reference.block_mass(
        query, key_cache, plan.block_tables, plan.seq_lens, plan.query_start_loc,
        scale, sliding_window, softcap, scales,
    )  # fmt: skip


def copy_blocks(
    storage: Tensor, pairs: Sequence[tuple[int, int]], *, backend: Backend = "auto"
) -> None:
    """Copies blocks in every cache, as if one pair after the other; changes the storage.

    Args:
        storage: `[caches, num_blocks, ...]`, such as K and V of every layer.
        pairs: (source, destination) block ids.
        backend: of `choose_backend`.

    Raises:
        ValueError: a block outside the caches.
    """
    storage = _as_bytes(storage)
    checks.check_blocks(storage, [block for pair in pairs for block in pair], "copied")
    chosen = choose_backend(backend, storage.device)
    if not pairs:
        return
    if chosen == "reference":
        reference.copy_blocks(storage, pairs)
    elif chosen in ("torch", "numba"):
        torch_paged.copy_blocks(storage.unbind(0), pairs)
    else:
        from kernels import triton_copy

        triton_copy.copy_blocks(storage, pairs)


def move_blocks(
    source: Tensor,
    destination: Tensor,
    pairs: Sequence[tuple[int, int]],
    *,
    backend: Backend = "auto",
) -> None:
    """Copies blocks from one storage to another, such as from the GPU to the host and back.

    Args:
        source: `[caches, num_blocks, ...]`.
        destination: the same but for its number of blocks; changed.
        pairs: (source, destination) block ids; of two with the same destination the last counts.
        backend: of `choose_backend`; "triton" needs pinned memory on the host's side, and "auto"
            takes it only then.

    Raises:
        ValueError: a block outside its storage, or storages that don't match.
    """
    checks.check_blocks(source, [read for read, _ in pairs], "moved")
    checks.check_blocks(destination, [write for _, write in pairs], "moved")
    if (source.shape[:1] + source.shape[2:], source.dtype) != (
        destination.shape[:1] + destination.shape[2:],
        destination.dtype,
    ):
        raise ValueError(
            f"blocks of {tuple(source.shape)} {source.dtype} can't move to "
            f"{tuple(destination.shape)} {destination.dtype}"
        )
    if not pairs:
        return
    source, destination = _as_bytes(source), _as_bytes(destination)
    chosen = choose_backend(backend, _gpu_of(source, destination))
    if chosen == "triton" and not _reachable(source, destination):
        if backend == "triton":
            raise ValueError("backend 'triton' moves blocks to and from pinned host memory only")
        chosen = "torch"
    last = [(read, write) for write, read in {write: read for read, write in pairs}.items()]
    if chosen == "triton":
        from kernels import triton_copy

        triton_copy.move_blocks(source, destination, last)
    else:
        move = reference.move_blocks if chosen == "reference" else torch_paged.move_blocks
        move(source, destination, last)


def _check_step(
    slot_mapping: Tensor,
    block_tables: Tensor,
    seq_lens: Sequence[int],
    q_lens: Sequence[int],
    num_blocks: int,
    block_size: int,
) -> None:
    checks.check_indices(slot_mapping, block_tables)
    checks.check_lengths(slot_mapping, block_tables, seq_lens, q_lens, block_size)
    checks.check_range("slot_mapping", slot_mapping, num_blocks * block_size)
    checks.check_range("block_tables", block_tables, num_blocks)


def _check_layer(
    key_cache: Tensor, value_cache: Tensor, plan: KernelPlan, scales: KVScales | None
) -> None:
    checks.check_caches(key_cache, value_cache, plan.cache_shape, plan.backend)
    checks.check_scales(key_cache, scales)
    if plan.backend == "numba":
        _check_loops(key_cache.dtype)
    if plan.debug:
        num_blocks, block_size = plan.cache_shape
        checks.check_range("slot_mapping", plan.slot_mapping, num_blocks * block_size, lowest=-1)
        checks.check_range("block_tables", plan.block_tables, num_blocks)


def _as_bytes(storage: Tensor) -> Tensor:
    """A view that every device can index: an older torch knows no fp8 there."""
    return storage.view(torch.uint8) if storage.dtype == FP8 else storage


def _gpu_of(*storages: Tensor) -> torch.device:
    return next((s.device for s in storages if s.device.type != "cpu"), storages[0].device)


def _reachable(*storages: Tensor) -> bool:
    """Whether a kernel can address them all."""
    return interpreting() or all(s.is_cuda or s.is_pinned() for s in storages)


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _has_numba() -> bool:
    return importlib.util.find_spec("numba") is not None and _imports_numba()


@cache
def _imports_numba() -> bool:
    """Whether the loops can be imported; asked once, as a failing import is slow."""
    try:
        importlib.import_module("kernels.numba_paged")
    except Exception:
        # Of any kind: a numba made for another NumPy, a damaged library, a setting that numba
        # refuses, no folder to keep compiled code in. Torch can do the work.
        return False
    return True


def _check_numba(device: str, cache_dtype: torch.dtype | None) -> None:
    if device != "cpu":
        raise ValueError(f"backend 'numba' runs on a CPU, the tensors are on {device}: take 'auto'")
    if cache_dtype is not None:
        _check_loops(cache_dtype)
    # Without a dtype nothing is compiled: a step must not wait for loops that it won't run.
    if not (_has_numba() if cache_dtype is None else has_compiled(cache_dtype)):
        raise ValueError(
            "backend 'numba' needs the package numba, one that runs with this NumPy: "
            "install it or take backend 'torch'"
        )


def _check_loops(cache_dtype: torch.dtype) -> None:
    if cache_dtype not in COMPILED_DTYPES:
        raise ValueError(
            f"backend 'numba' has no loops for a cache of {cache_dtype}: take backend 'torch'"
        )


def _groups(
    backend: RealBackend,
    tables: Tensor,
    seq_lens: Sequence[int],
    q_lens: Sequence[int],
    block_size: int,
) -> tuple[torch_paged.Group, ...]:
    """The padded batches that a backend leaves to torch."""
    if backend == "torch":
        return torch_paged.make_groups(tables, seq_lens, q_lens, block_size)
    if backend != "numba":
        return ()
    prefills = [index for index, count in enumerate(q_lens) if count > 1]
    return torch_paged.make_groups(tables, seq_lens, q_lens, block_size, prefills)


def _decodes(tables: Tensor, seq_lens: Sequence[int], q_lens: Sequence[int]) -> "Decodes | None":
    from kernels import numba_paged

    return numba_paged.make_decodes(tables, seq_lens, q_lens)
