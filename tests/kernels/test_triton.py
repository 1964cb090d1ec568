"""The Triton kernels against the reference: on a GPU where there is one, else interpreted.

Memory that nobody wrote holds NaN: slots of the cache, and every output before a kernel runs.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton isn't installed on this machine")

from kernels import (
    dispatch,
    fp8,
    reference,
    triton_copy,
    triton_paged,
    triton_tune,
    triton_write,
    tuning,
)
from kernels.triton_launch import interpreting
from tests.kernels.steps import STEPS, Step

DEVICE = "cpu" if interpreting() else "cuda"
BOUNDS = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def poisoned(fresh: torch.Tensor) -> torch.Tensor:
    return fresh.fill_(float("nan")) if fresh.is_floating_point() else fresh


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fills new memory with NaN, so that a row that no kernel wrote shows."""
    for owner, name in ((torch, "empty_like"), (torch.Tensor, "new_empty")):
        make = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, make=make, **k: poisoned(make(*a, **k)))


def assert_equal(step: Step, window: int | None = None, softcap: float | None = None) -> None:
    bound = BOUNDS[step.query.dtype]
    wanted = step.attend("reference", window, softcap)
    assert not wanted.isnan().any()
    found = step.attend("triton", window, softcap)
    torch.testing.assert_close(found, wanted, atol=bound, rtol=bound)


def make(name: str, **options: object) -> Step:
    return Step(*STEPS[name], device=DEVICE, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("block_size", [1, 3, 16, 256])
@pytest.mark.parametrize("name", ["decodes", "continued prefills"])
def test_attention_equals_the_reference_for_every_block_size(name: str, block_size: int) -> None:
    assert_equal(make(name, block_size=block_size))


@pytest.mark.parametrize(("num_kv_heads", "group"), [(1, 1), (1, 20), (3, 3)])
@pytest.mark.parametrize("name", ["decodes", "fresh prefills"])
def test_attention_equals_the_reference_for_every_head_ratio(
    name: str, num_kv_heads: int, group: int
) -> None:
    assert_equal(make(name, block_size=5, num_kv_heads=num_kv_heads, group=group))


@pytest.mark.parametrize("head_dim", [32, 80, 96, 256])
def test_attention_equals_the_reference_for_every_head_dim(head_dim: int) -> None:
    step = Step([1, 4], [9, 21], block_size=4, head_dim=head_dim, device=DEVICE)
    assert_equal(step)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_attention_equals_the_reference_for_every_dtype(dtype: torch.dtype) -> None:
    step = Step(
        [1, 1, 7, 1], [40, 1, 20, 33], block_size=16, dtype=dtype, head_dim=32, device=DEVICE
    )
    assert_equal(step)
    assert_equal(step, 6, 3.0)


@pytest.mark.parametrize(("window", "softcap"), [(1, None), (7, None), (64, 2.0), (None, 2.0)])
def test_attention_honours_window_and_softcap(window: int | None, softcap: float | None) -> None:
    step = Step([1, 12, 3], [40, 30, 8], block_size=4, num_kv_heads=1, device=DEVICE)
    assert_equal(step, window, softcap)


@pytest.mark.parametrize("splits", [1, 2, 9])
def test_shares_of_a_context_join_to_the_same_attention(splits: int) -> None:
    step = Step([1, 1], [90, 2], block_size=4, num_kv_heads=1, device=DEVICE)
    inner = step.plan("triton").step
    assert inner is not None
    found = triton_paged.paged_attention(
        step.query, step.keys, step.values, inner, 0.3, 70, splits=splits
    )
    wanted = step.attend("reference", 70)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)


def test_a_long_context_is_split_by_itself() -> None:
    step = Step([1], [700], block_size=16, num_kv_heads=1, device=DEVICE)
    inner = step.plan("triton").step
    assert inner is not None
    assert triton_paged.num_splits(step.query, step.keys, inner) > 1
    assert_equal(step)


def test_a_query_seen_through_a_transposed_view_is_read_in_place() -> None:
    step = make("continued prefills", block_size=4)
    step.query = step.query.transpose(0, 1).contiguous().transpose(0, 1)
    assert not step.query.is_contiguous()
    assert_equal(step)


@pytest.mark.parametrize("per_head", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_fp8_cache_gives_what_the_reference_reads_from_it(
    per_head: bool, dtype: torch.dtype
) -> None:
    step = Step([1, 5], [30, 9], block_size=4, head_dim=40, dtype=dtype, device=DEVICE)
    exact = step.attend("reference")
    assert_equal(step.to_fp8(per_head=per_head))
    difference = (step.attend("reference") - exact).abs().max()
    assert 0 < difference < 0.2  # eight bits are not the whole truth


def test_an_fp8_cache_is_written_to_the_bit_as_torch_rounds() -> None:
    sizes = torch.logspace(-6, 4, 200)  # past both ends of what e4m3 holds
    key = (torch.randn(16, 3, 200) * sizes).to(DEVICE)
    key[0, 0, 0] = 448 * 3.0
    scales = fp8.KVScales(torch.tensor([1.0, 0.5, 3.0]), torch.tensor([2.0, 1.0, 0.1]))
    scales = fp8.KVScales(scales.key.to(DEVICE), scales.value.to(DEVICE))
    caches = [torch.zeros(4, 5, 3, 200, dtype=torch.uint8).to(DEVICE).view(fp8.FP8) for _ in "kv"]
    slots = torch.randperm(20)[:16].to(DEVICE)
    triton_write.write_kv(key, -key, *caches, slots, scales)
    for cache, value, scale in zip(caches, (key, -key), (scales.key, scales.value), strict=True):
        found = cache.view(torch.uint8).flatten(0, 1)[slots]
        wanted = fp8.quantise(value, scale).view(torch.uint8)
        assert torch.equal(found, wanted)


def test_every_fp8_number_is_read_as_torch_reads_it() -> None:
    """Attention over one token is that token's value; its 254 dimensions are all numbers."""
    codes = torch.arange(256, dtype=torch.uint8)
    cache = codes[(codes & 0x7F) != 0x7F].view(1, 1, 1, 254).to(DEVICE).view(fp8.FP8)
    ones = torch.ones(1, device=DEVICE)
    plan = dispatch.prepare(
        torch.tensor([0]), torch.tensor([[0]]), [1], [1], num_blocks=1, block_size=1,
        backend="triton", device=DEVICE,
    )  # fmt: skip
    query = torch.zeros(1, 1, 254, device=DEVICE)
    scales = fp8.KVScales(ones, ones)
    found = dispatch.paged_attention(query, cache, cache, plan, 1.0, scales=scales)
    assert torch.equal(found[0], cache[0, 0].float())


@pytest.mark.parametrize("name", ["decodes", "continued prefills"])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (9, 2.0)])
def test_the_mass_of_a_block_is_the_attention_that_it_gets(
    name: str, window: int | None, softcap: float | None
) -> None:
    step = make(name, block_size=5)
    wanted = step.mass("reference", window, softcap)
    torch.testing.assert_close(
        wanted.sum(-1), torch.ones(wanted.shape[:2], device=DEVICE), atol=1e-5, rtol=0
    )
    found = step.mass("triton", window, softcap)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)


def test_written_tokens_are_in_their_slots_and_padding_is_nowhere() -> None:
    key, value = torch.randn(2, 6, 3, 40, device=DEVICE)
    key = key.transpose(0, 1).contiguous().transpose(0, 1)  # as the model hands it over
    caches = [torch.zeros(4, 5, 3, 40, device=DEVICE) for _ in range(4)]
    slots = torch.tensor([7, -1, 0, 19, -1, 3], device=DEVICE)
    triton_write.write_kv(key, value, *caches[:2], slots)
    reference.write_kv(key, value, *caches[2:], slots)
    assert torch.equal(caches[0], caches[2])
    assert torch.equal(caches[1], caches[3])
    assert torch.equal(caches[0].flatten(0, 1)[7], key[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_copies_of_blocks_happen_as_if_one_after_the_other(dtype: torch.dtype) -> None:
    pairs = [(0, 3), (1, 4), (3, 5), (5, 0), (2, 3)]
    storage = torch.randint(0, 100, (4, 6, 5, 3, 7), device=DEVICE).to(dtype)
    wanted = storage.clone()
    reference.copy_blocks(wanted, pairs)
    dispatch.copy_blocks(storage, pairs, backend="triton")
    assert torch.equal(storage, wanted)


def test_all_copies_of_a_fork_are_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[int] = []
    move = triton_copy.move_blocks
    monkeypatch.setattr(
        triton_copy, "move_blocks", lambda *args: launches.append(len(args[2])) or move(*args)
    )
    dispatch.copy_blocks(
        torch.zeros(60, 9, 4, device=DEVICE), [(n, n + 4) for n in range(4)], backend="triton"
    )
    assert launches == [4]


def test_blocks_that_are_swapped_out_and_in_keep_their_content() -> None:
    device = torch.randn(4, 6, 5, 3, 7, device=DEVICE)
    host = torch.zeros(4, 3, 5, 3, 7)
    host = host if interpreting() else host.pin_memory()
    before = device.clone()
    dispatch.move_blocks(device, host, [(5, 0), (1, 2)], backend="triton")
    device[:, 5] = device[:, 1] = float("nan")
    dispatch.move_blocks(host, device, [(0, 5), (2, 1)], backend="triton")
    assert torch.equal(device, before)


def test_a_foreign_block_is_refused_in_debug_mode_and_never_read() -> None:
    step = make("decodes", block_size=4)
    wanted = step.attend("reference")
    plan = step.plan("triton", debug=True)
    inner = plan.step
    assert inner is not None
    inner.block_tables[1, 2] = step.num_blocks + 1_000_000_000  # far outside any memory
    with pytest.raises(ValueError, match=r"block_tables holds 0 \.\. 10000000"):
        dispatch.paged_attention(step.query, step.keys, step.values, plan, 0.3)
    found = triton_paged.paged_attention(
        step.query, step.keys, step.values, inner, 0.3, checked=True
    )
    torch.testing.assert_close(found[0], wanted[0], atol=2e-5, rtol=2e-5)
    assert not found.isnan().any()
    slots = plan.slot_mapping
    slots[0] = 1 << 40
    with pytest.raises(ValueError, match="slot_mapping holds"):
        dispatch.write_kv(step.query[:, :2], step.query[:, :2], step.keys, step.values, plan)
    cut = step.query[:, :2]
    triton_write.write_kv(cut, cut, step.keys, step.values, slots, checked=True)
    assert torch.equal(step.keys.flatten(0, 1)[slots[1]], cut[1])


def test_slots_past_two_to_the_31_elements_are_reached(tmp_path: Path) -> None:
    if not interpreting():
        pytest.skip("the cache is a file that only a CPU can map")
    block = (16, 8, 128)
    num_blocks = (1 << 31) // math.prod(block) + 2
    # NOTE: a file with a hole: only the pages that are written take memory.
    with (tmp_path / "cache").open("wb") as file:
        file.truncate(num_blocks * math.prod(block))
    memory = np.memmap(tmp_path / "cache", dtype=np.uint8, mode="r+")
    cache = torch.from_numpy(memory).view(num_blocks, *block).view(fp8.FP8)
    key = torch.randn(1, 8, 128)
    scales = fp8.make_scales(key, key)
    last = num_blocks - 1
    plan = dispatch.prepare(
        torch.tensor([last * 16]), torch.tensor([[last]]), [1], [1],
        num_blocks=num_blocks, block_size=16, backend="triton",
    )  # fmt: skip
    dispatch.write_kv(key, key, cache, cache, plan, scales)
    found = dispatch.paged_attention(key, cache, cache, plan, 1.0, scales=scales)
    torch.testing.assert_close(found, key, atol=0.2, rtol=0.1)  # eight bits


def test_tuning_writes_a_table_that_the_kernels_then_use(tmp_path: Path) -> None:
    shape = triton_tune.TuneShape(
        4, 2, 16, block_size=4, num_seqs=2, context=24, new_tokens=3, dtype=torch.float32
    )
    tried = {
        "decode": [tuning.Settings(16), tuning.Settings(32)],
        "prefill": [tuning.Settings(32, rows=32)],
    }
    path = tmp_path / "deep" / "table.json"
    try:
        best = triton_tune.tune(path, shape, device=DEVICE, candidates=tried)  # type: ignore[arg-type]
        assert len(best) == 2
        for key, (settings, seconds) in best.items():
            assert seconds > 0
            assert settings in tried[key.split("/")[1]]
            arch, kernel, dtype, head_dim, block_size = key.split("/")
            used = tuning.settings_for(kernel, dtype, int(head_dim), int(block_size), arch)
            assert used == settings
            tuning.use_settings(key, None)
        assert tuning.use_table(path) == 2
    finally:
        for key in list(tuning._table):
            tuning.use_settings(key, None)


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text('{"sm90/decode": {"tiles": 3}}')
    with pytest.raises(ValueError, match="holds no table of kernel settings"):
        tuning.use_table(path)
    assert tuning.use_table(tmp_path / "none.json") == 0
