"""Replays recorded vLLM operations through our manager or scheduler and compares every state.

A file holds one JSON object a line: `{"in": operation, "out": state after it}`, recorded from
vLLM 0.33.0's own cache manager (operations admit, decode, free, reset) or scheduler (add, step,
abort). It knows the file's words and ours; it owns no semantics of its own.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.cache.manager import BlockManager
from core.config import EngineConfig
from core.errors import TraceError
from core.request import Request, SamplingParams, Sequence
from core.sched.output import Sampled, SchedulerOutput, StepResult
from core.sched.scheduler import Scheduler
from core.sched.update import StepUpdate
from core.trace import events as ev
from core.trace.recorder import Recorder

__all__ = ["Difference", "compare_sequence"]

_HASH_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Difference:
    """The first line that differs: its number, the part of the state, both values."""

    line: int
    part: str
    expected: Any
    actual: Any


def compare_sequence(path: str | Path) -> tuple[int, Difference | None]:
    """Replays a file; returns how many lines were equal, and the first that was not.

    Raises:
        TraceError: the file can't be read, or a line is not of the format.
    """
    equal = number = 0
    replay: _Replay | None = None
    for number, line in _lines(path):
        operation, expected = line["in"], line["out"]
        try:
            if operation["op"] == "init":
                replay = _start(operation, path)
                actual = replay.state()
            elif replay is None:
                raise KeyError("init")
            else:
                actual = replay.do(operation)
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError("sequence_line", path=path, line=number, detail=str(error)) from error
        for part, value in expected.items():
            if part not in actual or actual[part] != value:
                return equal, Difference(number, part, value, actual.get(part))
        equal += 1
    if not number:
        raise TraceError("sequence_empty", path=path)
    return equal, None


def _lines(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError("unreadable", path=path, detail=error) from error
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            parsed = json.loads(line)
            if not isinstance(parsed["in"]["op"], str) or not isinstance(parsed["out"], dict):
                raise TypeError("in.op and out expected")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise TraceError("sequence_line", path=path, line=number, detail=error) from error
        yield number, parsed


def _start(operation: Mapping[str, Any], path: str | Path) -> "_Replay":
    config = EngineConfig(
        num_blocks=operation["blocks"],
        block_size=operation["block_size"],
        prefix_caching=operation.get("caching", True),
        watermark=operation.get("watermark", 0.0),
        max_num_seqs=operation.get("max_num_seqs", 256),
        max_num_batched_tokens=operation.get("max_num_batched_tokens", 2048),
        policy=operation.get("policy", "fcfs"),
        long_prefill_token_threshold=operation.get("long_prefill_token_threshold", 0),
        reserve_full_prompt=operation.get("reserve_full_isl", True),
        num_host_blocks=0,
    )
    return _SchedulerReplay(config) if "max_num_seqs" in operation else _ManagerReplay(config)


class _Replay:
    """What both kinds share: the pool's state in the file's words."""

    def __init__(self, config: EngineConfig) -> None:
        self.recorder = Recorder()
        self.manager = BlockManager(config, self.recorder)
        self.operations: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {}
        self._seen = 0

    def do(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        """Carries out one operation; its answer and the state after it."""
        answer = self.operations[operation["op"]](operation)
        return {**answer, **self.state()}

    def state(self) -> dict[str, Any]:
        pool = self.manager.pool
        blocks = pool.blocks
        return {
            "free_queue": [block.block_id for block in pool.free_queue],
            "num_free": pool.num_free,
            "usage": round(pool.usage, 6),
            "ref": {str(b.block_id): b.ref_count for b in blocks if b.ref_count},
            "hash": {str(b.block_id): b.hash.hex()[:_HASH_DIGITS] for b in blocks if b.hash},
            "cached_keys": pool.num_cached_keys,
            "tables": {
                seq_id: [block.block_id for block in table]
                for seq_id, table in self.manager.tables.items()
                if table
            },
            "events": self._new_events(),
        }

    def _new_events(self) -> list[dict[str, Any]]:
        """Our events since the last call, as vLLM's KV cache events."""
        kv_events: list[dict[str, Any]] = []
        for event in self.recorder.events.since(self._seen):
            if isinstance(event, ev.BlockSealed):
                _store(kv_events, event)
            elif isinstance(event, ev.BlockEvicted):
                gone = [event.hash[:_HASH_DIGITS]]
                kv_events.append({"type": "BlockRemoved", "block_hashes": gone, **_GPU})
            elif isinstance(event, ev.PrefixCacheReset):
                kv_events.append({"type": "AllBlocksCleared"})
        self._seen = len(self.recorder.events)
        return kv_events


_GPU = {"medium": "GPU", "group_idx": 0}


def _store(kv_events: list[dict[str, Any]], event: ev.BlockSealed) -> None:
    """Adds a sealed block to the BlockStored event that it continues, or begins one."""
    own, parent = event.hash[:_HASH_DIGITS], event.parent_hash[:_HASH_DIGITS] or None
    last = kv_events[-1] if kv_events else {}
    if last.get("type") == "BlockStored" and last["block_hashes"][-1] == parent:
        last["block_hashes"].append(own)
        last["token_ids"].extend(event.token_ids)
        return
    kv_events.append(
        {
            "type": "BlockStored",
            "block_hashes": [own],
            "parent_block_hash": parent,
            "token_ids": list(event.token_ids),
            "block_size": len(event.token_ids),
            **_GPU,
        }
    )


class _ManagerReplay(_Replay):
    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._sequences: dict[str, Sequence] = {}
        self._watermark = config.watermark_blocks
        self.operations = {
            "admit": self._admit,
            "decode": self._decode,
            "free": self._free,
            "reset": self._reset,
        }

    def _admit(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        _refuse_twice(operation["id"], self._sequences)
        request = Request.make(
            operation["id"], operation["tokens"], SamplingParams(), cache_salt=operation["salt"]
        )
        seq = request.sequences[0]
        match = self.manager.find_prefix(seq)
        allocation = self.manager.allocate_slots(
            seq,
            len(seq.token_ids) - match.tokens,
            match,
            keep_free=self._watermark if self._sequences else 0,
        )
        if allocation is None:
            return {"ok": False, "hit_tokens": match.tokens}
        seq.num_computed_tokens = len(seq.token_ids)
        self._sequences[seq.seq_id] = seq
        return {"ok": True, "hit_tokens": match.tokens, "new": list(allocation.block_ids)}

    def _decode(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        seq = self._sequences[operation["id"]]
        seq.token_ids.extend(operation["tokens"])
        allocation = self.manager.allocate_slots(seq, len(operation["tokens"]))
        if allocation is None:
            del seq.token_ids[len(seq.token_ids) - len(operation["tokens"]) :]
            return {"ok": False}
        seq.num_computed_tokens = len(seq.token_ids)
        return {"ok": True, "new": list(allocation.block_ids)}

    def _free(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        self.manager.release(self._sequences.pop(operation["id"]))
        return {"ok": True}

    def _reset(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        return {"ok": self.manager.reset_cache()}


class _SchedulerReplay(_Replay):
    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._scheduler = Scheduler(config, self.manager, self.recorder)
        self._update = StepUpdate(self._scheduler, self.recorder, _NoText(), ())
        self.operations = {"add": self._add, "step": self._step, "abort": self._abort}

    def state(self) -> dict[str, Any]:
        scheduler = self._scheduler
        alive = {request.request_id: request for request in scheduler.requests()}
        return {
            **super().state(),
            "running": [request.request_id for request in scheduler.running],
            "waiting": [request.request_id for request in scheduler.waiting],
            "computed": {k: r.sequences[0].num_computed_tokens for k, r in alive.items()},
            "preemptions": {k: request.num_preemptions for k, request in alive.items()},
        }

    def _add(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        _refuse_twice(operation["id"], [r.request_id for r in self._scheduler.requests()])
        request = Request.make(
            operation["id"],
            operation["tokens"],
            SamplingParams(max_tokens=operation["max_tokens"], ignore_eos=True),
            priority=operation["priority"],
            arrival=operation["arrival"],
        )
        self._scheduler.add(request)
        return {}

    def _step(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        output = self._scheduler.schedule()
        tables = {item.seq.seq_id: list(item.block_ids) for item in output.scheduled}
        sampled = {
            item.seq.seq_id: [operation["sampled"][item.seq.seq_id]] if item.samples else []
            for item in output.scheduled
        }
        result = StepResult(
            samples={k: tuple(Sampled(t, 0.0) for t in tokens) for k, tokens in sampled.items()}
        )
        self._update.apply(output, result)
        return {**_decisions(output), "sampled": sampled, "tables_at_schedule": tables}

    def _abort(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        alive = {request.request_id: request for request in self._scheduler.requests()}
        self._scheduler.finish(alive[operation["id"]], "abort", ev.Reason("abort"))
        return {}


def _refuse_twice(request_id: str, alive: Collection[str]) -> None:
    if request_id in alive:
        raise ValueError(f"{request_id} is alive already")


def _decisions(output: SchedulerOutput) -> dict[str, Any]:
    return {
        "scheduled": {item.seq.seq_id: item.num_tokens for item in output.scheduled},
        "new": [r.request_id for r in output.admitted if not r.num_preemptions],
        "preempted": [request.request_id for request in output.preempted],
    }


class _NoText:
    """A recorded token says nothing."""

    def push(self, seq: Sequence, token_id: int) -> str:
        return ""

    def fork(self, parent: Sequence, child: Sequence) -> None:
        pass

    def drop(self, seq: Sequence) -> str:
        return ""
