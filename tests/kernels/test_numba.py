"""What the compiled CPU kernels promise beside the reference's numbers."""

import math
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from numba import njit

from kernels import dispatch, numba_paged, reference
from kernels.numba_math import COMPILE, exp2, load, store, tanh
from tests.kernels.steps import STEPS, Step

OPTIONS = {**COMPILE, "cache": False}
ROOT = Path(__file__).parents[2]
# For a process of its own: a step that is worth several threads, and what it must give.
PREAMBLE = """
import os, threading, torch
from kernels import dispatch, numba_decode, numba_paged, numba_rows
from tests.kernels.steps import Step
torch.set_num_threads(1)
step = Step([1] * 6, [900, 400, 300, 300, 880, 700], block_size=8)
wanted = step.attend("reference")
def is_right(backend="numba"):
    return torch.allclose(step.attend(backend), wanted, atol=1e-5)
assert dispatch.has_compiled(torch.float32)
torch.set_num_threads(2)
"""


@njit(**OPTIONS)
def _each(values, out, kind):
    for n in range(values.shape[0]):
        out[n] = exp2(values[n]) if kind == 0 else tanh(values[n])


@njit(**OPTIONS)
def _kept(values, out):
    for n in range(values.shape[0]):
        store(out, n, load(values, n))


def test_powers_of_two_are_right_to_the_last_digits() -> None:
    powers = np.linspace(-126, 126, 100_001, dtype=np.float32)
    out = np.empty_like(powers)
    _each(powers, out, 0)
    np.testing.assert_allclose(out, np.exp2(powers.astype(np.float64)), rtol=3e-7)
    extreme = np.array([-1e30, -200.0, 200.0, np.nan], np.float32)
    out = np.empty_like(extreme)
    _each(extreme, out, 0)
    assert out[0] == out[1] == np.float32(2.0**-126)
    assert out[2] == np.float32(2.0**126)
    assert math.isnan(out[3])


def test_the_tangent_of_a_soft_cap_is_right() -> None:
    values = np.linspace(-60, 60, 50_001, dtype=np.float32)
    out = np.empty_like(values)
    _each(values, out, 1)
    np.testing.assert_allclose(out, np.tanh(values.astype(np.float64)), atol=5e-7)


def test_bfloat16_is_read_and_rounded_as_torch_does() -> None:
    torch.manual_seed(0)
    ties = torch.tensor([1.00390625, 1.01171875, -1.00390625, 0.0, -0.0, float("inf"), 3e38])
    exact = torch.cat([torch.randn(10_000) * 100, ties])
    bits = np.empty(len(exact), np.uint16)
    _kept(exact.numpy(), bits)
    assert torch.equal(torch.from_numpy(bits).view(torch.bfloat16), exact.bfloat16())
    back = np.empty(len(exact), np.float32)
    _kept(bits, back)
    assert torch.equal(torch.from_numpy(back), exact.bfloat16().float())


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads_gives_the_same_numbers(threads: int) -> None:
    step = Step([1] * 7, [700, 3, 450, 1, 880, 7, 512], block_size=16, head_dim=16)
    before = torch.get_num_threads()
    alone = _with_threads(step, 1)
    try:
        assert torch.equal(_with_threads(step, threads), alone)
    finally:
        torch.set_num_threads(before)


def _with_threads(step: Step, threads: int) -> torch.Tensor:
    torch.set_num_threads(threads)
    return step.attend("numba")


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_torch_keeps_the_number_of_threads_that_was_chosen(threads: int) -> None:
    """Both may share one OpenMP, to which numba tells how many threads it wants."""
    step = Step([1] * 4, [700, 450, 880, 512], block_size=16)
    before = torch.get_num_threads()
    numba_paged._quick_threads.cache_clear()
    torch.set_num_threads(threads)
    try:
        step.attend("numba")
        assert torch.get_num_threads() == threads
        numba_paged._quick_threads()
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_decodes_are_dealt_out_so_that_every_thread_has_as_much() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        lengths = [10, 900, 20, 880, 30, 860, 40, 840]
        decodes = numba_paged.make_decodes(torch.zeros(8, 1, dtype=torch.int64), lengths, [1] * 8)
    finally:
        torch.set_num_threads(before)
    assert decodes is not None
    halves = decodes.lengths[:4].sum(), decodes.lengths[4:].sum()
    assert abs(halves[0] - halves[1]) <= 80
    assert sorted(decodes.rows.tolist()) == list(range(8))
    assert [lengths[row] for row in decodes.rows] == decodes.lengths.tolist()


def test_several_engines_may_attend_at_the_same_time() -> None:
    """numba's pool serves one caller at a time, and ends the process when there are two."""
    steps = [
        Step([1] * 6, [900, 400, 300, 300, 880, 700], block_size=8, seed=seed) for seed in range(4)
    ]
    wanted = [step.attend("numba") for step in steps]
    wrong: list[int] = []

    def again(index: int) -> None:
        for _ in range(25):
            if not torch.equal(steps[index].attend("numba"), wanted[index]):
                wrong.append(index)

    threads = [threading.Thread(target=again, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_broken_number_in_the_cache_shows_in_the_output() -> None:
    step = Step(*STEPS["decodes"], block_size=4)
    step.keys[step.tables[1, 0], 0] = float("nan")
    nan = step.attend("numba").isnan().flatten(1).any(1)
    assert nan.tolist() == [False, True, False, False]


def test_a_padding_token_is_not_stored() -> None:
    keys, values = torch.randn(2, 3, 2, 4)
    caches = torch.zeros(2, 4, 2, 2, 4)
    wanted = caches.clone()
    slots = torch.tensor([5, -1, 2])
    numba_paged.write_kv(keys, values, caches[0], caches[1], slots)
    reference.write_kv(keys, values, wanted[0], wanted[1], slots)
    assert torch.equal(caches, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_divided_by_their_root_mean_square(dtype: torch.dtype) -> None:
    rows = (torch.randn(5, 33) * 4).to(dtype)
    found = numba_paged.divided_by_rms(rows, 1e-5)
    wanted = torch.nn.functional.rms_norm(rows.float(), (33,), eps=1e-5).to(dtype)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_the_heads_that_turn_are_turned(dtype: torch.dtype) -> None:
    heads = torch.randn(4, 5, 12).to(dtype)
    angles = torch.rand(4, 12) * 6
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    swapped = torch.cat([-heads[..., 6:], heads[..., :6]], dim=-1).float()
    wanted = (heads.float() * cos[:, None].float() + swapped * sin[:, None].float()).to(dtype)
    wanted[:, 3:] = heads[:, 3:]
    numba_paged.rotate_heads(heads, cos, sin, 3)
    torch.testing.assert_close(heads, wanted)


def test_the_compiled_loops_are_the_choice_on_a_cpu_where_they_fit() -> None:
    assert dispatch.choose_backend("auto", "cpu", torch.float32) == "numba"
    assert dispatch.choose_backend("auto", "cpu", torch.bfloat16) == "numba"
    assert dispatch.choose_backend("auto", "cpu", torch.float16) == "torch"
    assert dispatch.choose_backend("auto", "cpu", torch.float8_e4m3fn) == "torch"
    with pytest.raises(ValueError, match=r"no loops for a cache of torch\.float16.*'torch'"):
        dispatch.choose_backend("numba", "cpu", torch.float16)
    with pytest.raises(ValueError, match=r"'numba' runs on a CPU.*cuda"):
        dispatch.choose_backend("numba", "cuda", torch.float32)


def test_without_numba_torch_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.importlib.util, "find_spec", lambda name: None)
    assert dispatch.choose_backend("auto", "cpu", torch.float32) == "torch"
    with pytest.raises(ValueError, match="needs the package numba"):
        dispatch.choose_backend("numba", "cpu", torch.float32)


def test_loops_that_give_other_numbers_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    numba_paged.usable.cache_clear()
    monkeypatch.setattr(numba_paged, "write_kv", lambda *tensors: None)
    try:
        assert not numba_paged.usable(torch.float32)
    finally:
        numba_paged.usable.cache_clear()


def in_new_process(code: str, **environment: str) -> None:
    """Runs it to its end, which must be a good one."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("fault", ["OSError", "AttributeError", "RuntimeError", "SystemError"])
def test_a_numba_that_fails_to_load_leaves_the_work_to_torch(fault: str, tmp_path: Path) -> None:
    """RuntimeError is what numba says where there is no folder to keep compiled code in."""
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").write_text(f"raise {fault}('broken')")
    code = """
import torch
from kernels import dispatch
assert dispatch.choose_backend("auto", "cpu", torch.float32) == "torch"
try:
    dispatch.choose_backend("numba", "cpu", torch.float32)
except ValueError as error:
    assert "needs the package numba" in str(error)
else:
    raise SystemExit("not refused")
"""
    in_new_process(code, PYTHONPATH=str(tmp_path))


@pytest.mark.parametrize("fault", [EOFError, pickle.UnpicklingError, OSError, AssertionError])
def test_damaged_kept_code_leaves_the_work_to_torch(
    fault: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*arguments: object) -> None:
        raise fault("kept code")

    monkeypatch.setattr(numba_paged, "write_slots", damaged)
    numba_paged.usable.cache_clear()
    try:
        assert dispatch.choose_backend("auto", "cpu", torch.float32) == "torch"
    finally:
        numba_paged.usable.cache_clear()


@pytest.mark.parametrize("layer", ["tbb", "rubbish"])
def test_a_kind_of_threads_that_is_not_here_costs_only_time(layer: str) -> None:
    in_new_process(PREAMBLE + "assert is_right()", NUMBA_THREADING_LAYER=layer)


def test_numbas_own_pool_is_never_called_by_two_at_once() -> None:
    code = """
right = []
def again():
    torch.set_num_threads(2)
    right.extend(is_right() for _ in range(20))
threads = [threading.Thread(target=again) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(right) == 80 and all(right)
"""
    in_new_process(PREAMBLE + code, NUMBA_THREADING_LAYER="workqueue")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system can't fork a process")
@pytest.mark.parametrize("layer", ["default", "workqueue"])
def test_a_fork_attends_without_its_parents_threads(layer: str) -> None:
    """OpenMP ends a fork that asks for threads which only its parent has."""
    code = """
assert is_right()
child = os.fork()
if not child:
    os._exit(0 if is_right() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert is_right()
"""
    in_new_process(PREAMBLE + code, NUMBA_THREADING_LAYER=layer)


def test_a_step_compiles_nothing_that_was_not_tried_before() -> None:
    """A model alone with its tokens hands over other memory than one whose q, k and v are joint."""
    code = """
torch.set_num_threads(2)
numba_paged.usable.cache_clear()
numba_paged.usable(torch.float32)
loops = (numba_decode.decode, numba_decode.decode_threaded, numba_rows.write_slots)
counts = [len(loop.signatures) for loop in loops]
for lengths in ([900, 400, 300, 300, 880, 700], [3], [5, 9]):
    step = Step([1] * len(lengths), lengths, block_size=8)
    joint = torch.randn(len(lengths), 8, 8)
    apart = [part.contiguous() for part in joint.split([4, 2, 2], dim=1)]
    for query, key, value in (joint.split([4, 2, 2], dim=1), apart):
        plan = step.plan("numba")
        dispatch.write_kv(key, value, step.keys, step.values, plan)
        dispatch.paged_attention(query, step.keys, step.values, plan, 0.3)
assert [len(loop.signatures) for loop in loops] == counts
"""
    in_new_process(PREAMBLE + code)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_cache_without_loops_is_refused_by_the_step_too(dtype: torch.dtype) -> None:
    step = Step([1, 1], [5, 9], block_size=4, dtype=dtype)
    with pytest.raises(ValueError, match=r"no loops for a cache of torch\.float"):
        step.attend("numba")
    with pytest.raises(ValueError, match=r"no loops for a cache of torch\.float8"):
        Step([1, 1], [5, 9], block_size=4).to_fp8(per_head=False).attend("numba")


def test_a_plan_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows no dtype: a step in bfloat16 must not wait for the loops of float32."""
    tried: list[torch.dtype] = []
    monkeypatch.setattr(numba_paged, "usable", tried.append)
    assert Step([1, 1], [5, 9], block_size=4).plan("numba").backend == "numba"
    assert not tried


def test_a_wrong_table_or_slot_is_refused_in_debug_mode() -> None:
    step = Step([1, 1], [5, 9], block_size=4)
    plan = step.plan("numba", debug=True)
    plan.slot_mapping[0] = 10**7
    new = torch.zeros(2, 2, 8)
    with pytest.raises(ValueError, match=r"slot_mapping holds .* 10000000"):
        dispatch.write_kv(new, new, step.keys, step.values, plan)
    plan = step.plan("numba", debug=True)
    plan.block_tables[0, 0] = 10**7
    with pytest.raises(ValueError, match=r"block_tables holds .* 10000000"):
        dispatch.paged_attention(step.query, step.keys, step.values, plan, 0.3)
