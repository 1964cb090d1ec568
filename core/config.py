"""EngineConfig: the settings of one engine, checked once when they are made.

It does not know the model: `num_blocks` may be left open, and is then derived from `kv_memory`
(bytes) once a model says how many bytes a block takes.
"""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from core.checks import check_number, check_switch
from core.errors import ConfigError

__all__ = [
    "Allocator",
    "Batching",
    "EngineConfig",
    "KVCacheDtype",
    "Placement",
    "Policy",
    "PreemptionMode",
    "Reserve",
    "Semantics",
]

Semantics = Literal["paper", "v1"]
Policy = Literal["fcfs", "priority"]
PreemptionMode = Literal["auto", "recompute", "swap"]
Allocator = Literal["paged", "contiguous"]
Reserve = Literal["max", "pow2", "exact"]
Placement = Literal["first_fit", "best_fit", "buddy"]
Batching = Literal["continuous", "static"]
KVCacheDtype = Literal["auto", "fp8"]

_MAX_BLOCK_SIZE = 1024
_MAX_BLOCKS = 1 << 24
_DEFAULT_TOKENS = 4096
# vLLM 0.6.2: BlockSpaceManagerV2(watermark=0.01); vLLM v1 has a watermark of 0 by default.
_WATERMARK = {"paper": 0.01, "v1": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine.

    `prefix_caching` and `watermark` default to what the chosen semantics does: on and 0 in "v1",
    off and 0.01 in "paper". `num_host_blocks` is the swap space, used in "paper" only.

    `allocator` and `batching` are independent. "contiguous" is the memory before paging: each
    sequence gets one region of slots, as long as `reserve` says ("max": `max_model_len`; "pow2":
    prompt and the next power of two of its answer's limit; "exact": just what it can write),
    where `placement` finds room. It shares, preempts and swaps nothing. `max_model_len` is the
    longest context of this engine; None is the model's own.

    `gpu_memory_utilization` is a third way to size the pool, on a GPU only: the share of its memory
    that the engine may use, found by running the largest step once.

    `kv_cache_dtype` is how K and V are stored: "auto" is the model's own data type, "fp8" is e4m3,
    one byte a number. That rounds them, so that tokens may differ from those of "auto".

    Raises:
        ConfigError: a value of another kind or out of range, or two settings that exclude each
            other.
    """

    block_size: int = 16
    num_blocks: int | None = None
    kv_memory: int | None = None
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    semantics: Semantics = "v1"
    policy: Policy = "fcfs"
    prefix_caching: bool | None = None
    watermark: float | None = None
    chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    reserve_full_prompt: bool = True
    preemption: PreemptionMode = "auto"
    num_host_blocks: int = 256
    seed: int = 0
    allocator: Allocator = "paged"
    reserve: Reserve = "max"
    placement: Placement = "first_fit"
    batching: Batching = "continuous"
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_dtype: KVCacheDtype = "auto"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(
                    "choice", name=name, value=getattr(self, name), choices=", ".join(choices)
                )
        for name, (low, high) in _RANGES.items():
            if getattr(self, name) is not None or name not in _OPTIONAL:
                check_number(name, getattr(self, name), low, high)
        for name in _SWITCHES:
            if getattr(self, name) is not None or name not in _OPTIONAL:
                check_switch(name, getattr(self, name))
        self._check_combinations()

    @property
    def caching(self) -> bool:
        """Whether full blocks are findable by prefix."""
        if self.is_contiguous:
            return False
        return self.semantics == "v1" if self.prefix_caching is None else self.prefix_caching

    @property
    def is_contiguous(self) -> bool:
        """Whether every sequence has one region of slots, and no blocks."""
        return self.allocator == "contiguous"

    @property
    def usable_slots(self) -> int:
        """Slots that requests can own: the same in both memories."""
        return self.usable_blocks * self.block_size

    @property
    def storage(self) -> tuple[int, int]:
        """Blocks and slots a block of the KV tensors: regions begin at any slot."""
        return (
            (self.usable_slots, 1) if self.is_contiguous else (self.total_blocks, self.block_size)
        )

    @property
    def watermark_blocks(self) -> int:
        """Blocks that admission keeps free: int(watermark x num_blocks), as vLLM rounds."""
        fraction = _WATERMARK[self.semantics] if self.watermark is None else self.watermark
        return int(fraction * self.total_blocks)

    @property
    def total_blocks(self) -> int:
        """`num_blocks`, once it is known.

        Raises:
            ConfigError: the pool has no size yet.
        """
        if self.num_blocks is None:
            raise ConfigError("no_pool_size")
        return self.num_blocks

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can own; "v1" reserves block 0 as the null block."""
        return self.total_blocks - (self.semantics == "v1")

    def sized(self, block_bytes: int) -> "EngineConfig":
        """This configuration with `num_blocks` set.

        Without `kv_memory` there is room for 4,096 tokens, and at least 16 blocks.

        Args:
            block_bytes: bytes of one block over all layers, K and V.

        Raises:
            ConfigError: `kv_memory` holds fewer than two blocks.
        """
        if self.num_blocks is not None:
            return self
        if self.kv_memory is None:
            blocks = max(16, _DEFAULT_TOKENS // self.block_size)
            return replace(self, num_blocks=blocks)
        num_blocks = self.kv_memory // block_bytes
        if num_blocks < 2:
            raise ConfigError("kv_memory_small", kv_memory=self.kv_memory, need=2 * block_bytes)
        return replace(self, num_blocks=num_blocks, kv_memory=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a trace's header."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "EngineConfig":
        """The configuration of a trace's header; unknown keys are refused.

        Raises:
            ConfigError: an unknown key or a bad value.
        """
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                raise ConfigError("unknown_setting", name=name)
        return cls(**values)

    def _check_combinations(self) -> None:
        sizes = ("num_blocks", "kv_memory", "gpu_memory_utilization")
        given = [name for name in sizes if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError("two_pool_sizes", first=given[0], second=given[1])
        if self.preemption == "swap" and self.semantics == "v1":
            raise ConfigError("swap_needs_paper")
        if self.is_contiguous and self.prefix_caching:
            raise ConfigError("caching_needs_paged")
        if self.is_contiguous and self.preemption == "swap":
            raise ConfigError("swap_needs_paged")
        if not self.chunked_prefill and self.long_prefill_token_threshold:
            raise ConfigError("threshold_needs_chunks")


_CHOICES: dict[str, tuple[str, ...]] = {
    "semantics": ("paper", "v1"),
    "policy": ("fcfs", "priority"),
    "preemption": ("auto", "recompute", "swap"),
    "allocator": ("paged", "contiguous"),
    "reserve": ("max", "pow2", "exact"),
    "placement": ("first_fit", "best_fit", "buddy"),
    "batching": ("continuous", "static"),
    "kv_cache_dtype": ("auto", "fp8"),
}
_SWITCHES = ("prefix_caching", "chunked_prefill", "reserve_full_prompt")
_OPTIONAL = {
    "num_blocks",
    "kv_memory",
    "watermark",
    "prefix_caching",
    "max_model_len",
    "gpu_memory_utilization",
}
_RANGES: dict[str, tuple[float, float]] = {
    "block_size": (1, _MAX_BLOCK_SIZE),
    "num_blocks": (2, _MAX_BLOCKS),
    "kv_memory": (1, 1 << 44),
    "max_num_seqs": (1, 4096),
    "max_num_batched_tokens": (1, 1 << 20),
    "watermark": (0.0, 0.99),
    "long_prefill_token_threshold": (0, 1 << 20),
    "num_host_blocks": (0, _MAX_BLOCKS),
    "max_model_len": (2, 1 << 30),
    "gpu_memory_utilization": (0.01, 1.0),
    "seed": (0, (1 << 63) - 1),
}
