"""Decode times: a record follows from its shape and survives a file. No time is judged."""

from __future__ import annotations

import importlib.util
import json

import pytest

from core.errors import GlassblockError, TraceError
from core.exec import interpreter_check
from core.exec.decode_points import Case, SpeedRun
from core.exec.decode_speed import measure

CASES = (
    Case("block_size", block_size=4, num_seqs=2, context=9),
    Case("group", block_size=4, num_seqs=2, context=9, num_kv_heads=9),
    Case("group", block_size=4, num_seqs=2, context=9, num_kv_heads=1),
)


def small(told: list[float] | None = None) -> SpeedRun:
    tell = told.append if told is not None else (lambda share: None)
    return measure(tell, cases=CASES, repeats=2, copied=1 << 12, side=8)


def test_bytes_and_operations_follow_from_the_shape() -> None:
    run = small()
    first, alone, shared = run.points
    assert first.bytes_read == 2 * 2 * 9 * 3 * 64 * 4
    assert first.operations == 4 * 2 * 9 * 9 * 64
    assert (alone.intensity, shared.intensity) == (0.5, 4.5)
    assert run.copy_rate == 2 * (1 << 12) / run.copy.fastest


def test_a_record_survives_its_file() -> None:
    run = small()
    assert SpeedRun.from_json(json.loads(run.dump())) == run
    assert [point.case for point in run.of("group")] == list(CASES[1:])
    with pytest.raises(TraceError):
        SpeedRun.from_json({"points": []})


def test_the_share_told_grows_to_one() -> None:
    told: list[float] = []
    small(told)
    assert told == sorted(told) and told[-1] == 1.0


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_the_decode_kernel_is_right_in_the_interpreter() -> None:
    checks = interpreter_check.run()
    assert len(checks) == 5
    assert all(check.is_right and check.difference > 0 for check in checks)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_stopping_a_check_ends_its_process() -> None:
    class Stop(Exception):
        pass

    def tell(share: float) -> None:
        raise Stop

    with pytest.raises(Stop):
        interpreter_check.run(tell)


def test_without_triton_the_check_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter_check.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(GlassblockError) as fault:
        interpreter_check.run()
    assert "Triton is not installed" in fault.value.sentence("en")
