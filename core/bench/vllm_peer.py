"""vLLM's own block pool, manager and scheduler, doing the operations of `core.bench.pool`.

Only where vLLM is on the import path; nothing here depends on it otherwise. No model is loaded: a
scheduler needs a configuration, not weights. It knows vLLM 0.33's names, and a version with others
counts as not there.
"""

import importlib
import json
import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__all__ = ["VllmPeer", "find_vllm"]

_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 1000,
    "max_position_embeddings": 1 << 17,
}
_LONGEST = 1 << 17


def find_vllm(num_blocks: int) -> "tuple[VllmPeer | None, str]":
    """The peer, or None and why."""
    os.environ.setdefault("VLLM_TARGET_DEVICE", "empty")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        peer = VllmPeer(num_blocks)
        peer.take(1, 1)
        peer.append(1)
        peer.steps(1, 2, update=True)
    except Exception as fault:  # whatever a foreign package raises, it is not there to compare with
        first = str(fault).strip().partition("\n")[0]
        return None, f"{type(fault).__name__}: {first}"[:160]
    return peer, ""


class VllmPeer:
    """One vLLM in this process."""

    def __init__(self, num_blocks: int) -> None:
        self.version = str(importlib.import_module("vllm.version").__version__)
        self._num_blocks = num_blocks
        self._v = _names()
        self._v.init_none_hash(self._v.sha256)
        self._hasher = self._v.get_request_block_hasher(16, self._v.sha256)
        spec = self._v.FullAttentionSpec(
            block_size=16, num_kv_heads=1, head_size=1, dtype=self._v.float32
        )
        group = self._v.KVCacheGroupSpec(["layer"], spec)
        self._kv = self._v.KVCacheConfig(
            num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[group]
        )

    def take(self, blocks: int, count: int) -> float:
        """Blocks from the pool and back."""
        pool = self._pool()
        started = time.perf_counter()
        for _ in range(count):
            pool.free_blocks(pool.get_new_blocks(blocks))
        return time.perf_counter() - started

    def hit(self, count: int) -> float:
        """Finds a cached block by its hash, holds it, lets it go."""
        request = self._request("hit", list(range(17)))
        manager = self._manager()
        manager.allocate_slots(request, 17)
        manager.free(request)
        pool, block_hash = manager.block_pool, request.block_hashes[0]
        started = time.perf_counter()
        for _ in range(count):
            found = pool.get_cached_block(block_hash, [0])
            pool.touch(found)
            pool.free_blocks(found)
        return time.perf_counter() - started

    def fork(self, count: int) -> float:
        """One more holder of eight blocks, and one fewer."""
        pool = self._pool()
        blocks = pool.get_new_blocks(8)
        started = time.perf_counter()
        for _ in range(count):
            pool.touch(blocks)
            pool.free_blocks(blocks)
        return time.perf_counter() - started

    def admit_cold(self, count: int) -> float:
        """Looks up and allocates new prompts of 100 tokens, and frees them."""
        requests = [
            self._request(str(n), list(range(100 * n, 100 * n + 100))) for n in range(count)
        ]
        return self._admit_all(self._manager(), requests)

    def admit_hit(self, count: int) -> float:
        """The same with 96 tokens cached."""
        manager = self._manager()
        requests = [self._request(str(n), [*range(96), n, n, n, n]) for n in range(count + 1)]
        self._admit_all(manager, requests[:1])
        return self._admit_all(manager, requests[1:])

    def append(self, count: int) -> float:
        """Tokens of one sequence, one after another."""
        manager, request = self._manager(), self._request("a", list(range(100)))
        manager.allocate_slots(request, 100)
        request.num_computed_tokens = 100
        started = time.perf_counter()
        for token in range(count):
            request.append_output_token_ids(token)
            manager.allocate_slots(request, 1)
            request.num_computed_tokens += 1
        return time.perf_counter() - started

    def steps(self, count: int, running: int, *, update: bool) -> float:
        """Decode steps of so many requests; with their update where asked."""
        scheduler = self._scheduler(running)
        for number in range(running):
            scheduler.add_request(self._request(str(number), [number] * 100))
        total = 0.0
        for step in range(count + 2):  # the first two are prefills
            started = time.perf_counter()
            output = scheduler.schedule()
            middle = time.perf_counter()
            ids = list(output.num_scheduled_tokens)
            result = self._v.ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={name: place for place, name in enumerate(ids)},
                sampled_token_ids=[[7] for _ in ids],
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            )
            made = time.perf_counter()
            scheduler.update_from_output(output, result)
            spent = middle - started + (time.perf_counter() - made if update else 0.0)
            total += spent if step > 1 else 0.0
        return total

    def _admit_all(self, manager: Any, requests: list[Any]) -> float:
        started = time.perf_counter()
        for request in requests:
            blocks, tokens, *_ = manager.get_computed_blocks(request)
            manager.allocate_slots(request, 100 - tokens, tokens, blocks)
            manager.free(request)
        return time.perf_counter() - started

    def _pool(self) -> Any:
        return self._v.BlockPool(self._num_blocks, True, 16)

    def _manager(self) -> Any:
        return self._v.KVCacheManager(
            self._kv, max_model_len=_LONGEST, scheduler_block_size=16, hash_block_size=16
        )

    def _request(self, name: str, tokens: list[int]) -> Any:
        params = self._v.SamplingParams(max_tokens=100_000, ignore_eos=True)
        params.update_from_generation_config({}, eos_token_id=100)
        return self._v.Request(
            request_id=name,
            prompt_token_ids=tokens,
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            lora_request=None,
            cache_salt=None,
            block_hasher=self._hasher,
        )

    def _scheduler(self, running: int) -> Any:
        config = self._v.VllmConfig(
            model_config=self._model_config(),
            scheduler_config=self._v.SchedulerConfig(
                max_num_seqs=running, max_num_batched_tokens=8192, max_model_len=_LONGEST,
                is_encoder_decoder=False, async_scheduling=False, watermark=0.0,
            ),
            cache_config=self._v.CacheConfig(block_size=16, enable_prefix_caching=True),
            parallel_config=self._v.ParallelConfig(),
            device_config=self._v.DeviceConfig(device="cpu"),
        )  # fmt: skip
        config.cache_config.num_gpu_blocks = self._num_blocks
        self._v.register_all_kvcache_specs(config)
        return self._v.Scheduler(
            vllm_config=config,
            kv_cache_config=self._kv,
            structured_output_manager=self._v.StructuredOutputManager(config),
            block_size=16,
        )

    def _model_config(self) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(_MODEL), encoding="utf-8")
            return self._v.ModelConfig(
                model=folder, dtype="float16", seed=0, skip_tokenizer_init=True,
                max_model_len=_LONGEST,
            )  # fmt: skip


def _names() -> SimpleNamespace:
    """VLLM's classes and functions, by their own names."""
    wanted = {
        "vllm.config": "CacheConfig DeviceConfig ModelConfig ParallelConfig SchedulerConfig "
        "VllmConfig",
        "vllm.sampling_params": "SamplingParams",
        "vllm.utils.hashing": "sha256",
        "vllm.v1.core.block_pool": "BlockPool",
        "vllm.v1.core.kv_cache_manager": "KVCacheManager",
        "vllm.v1.core.kv_cache_utils": "get_request_block_hasher init_none_hash",
        "vllm.v1.core.sched.scheduler": "Scheduler",
        "vllm.v1.core.single_type_kv_cache_manager": "register_all_kvcache_specs",
        "vllm.v1.kv_cache_interface": "FullAttentionSpec KVCacheConfig KVCacheGroupSpec",
        "vllm.v1.outputs": "ModelRunnerOutput",
        "vllm.v1.request": "Request",
        "vllm.v1.structured_output": "StructuredOutputManager",
        "torch": "float32",
    }
    found: dict[str, Any] = {}
    for place, names in wanted.items():
        module = importlib.import_module(place)
        found.update({name: getattr(module, name) for name in names.split()})
    return SimpleNamespace(**found)
