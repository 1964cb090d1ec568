"""The fp8 cache on a CPU: read, written and moved as the plain path does."""

import pytest
import torch

from kernels import dispatch, fp8
from tests.kernels.steps import STEPS, Step

BOUNDS = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
BACKENDS = ["reference", "torch"]


def random_storage(*shape: int) -> torch.Tensor:
    """Blocks of any bytes at all, those of NaN too."""
    return torch.randint(0, 256, shape, dtype=torch.uint8).view(fp8.FP8)


def same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.view(torch.uint8), right.view(torch.uint8))


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("per_head", [True, False])
def test_torch_attention_reads_an_fp8_cache_as_the_reference_does(
    name: str, block_size: int, dtype: torch.dtype, per_head: bool
) -> None:
    step = Step(*STEPS[name], block_size=block_size, num_kv_heads=3, group=2, dtype=dtype)
    step.to_fp8(per_head=per_head)
    wanted = step.attend("reference")
    assert not wanted.isnan().any()
    bound = BOUNDS[dtype]
    torch.testing.assert_close(step.attend("torch"), wanted, atol=bound, rtol=bound)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_window_and_softcap_hold_for_an_fp8_cache(
    name: str, window: int | None, softcap: float | None
) -> None:
    step = Step(*STEPS[name], block_size=4).to_fp8(per_head=True)
    wanted = step.attend("reference", window, softcap)
    torch.testing.assert_close(step.attend("torch", window, softcap), wanted, atol=1e-5, rtol=1e-5)


def test_many_sequences_in_bfloat16_are_read_by_products_too() -> None:
    step = Step([1] * 24, [90 + n for n in range(24)], block_size=16, num_kv_heads=3, group=3,
                head_dim=64, dtype=torch.bfloat16).to_fp8(per_head=True)  # fmt: skip
    wanted = step.attend("reference")
    torch.testing.assert_close(step.attend("torch"), wanted, atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_every_byte_stands_for_the_number_that_torch_reads(dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    found = torch.empty(256, dtype=dtype)
    fp8.expand(codes, found)
    wanted = codes.view(fp8.FP8).to(dtype)
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.nan_to_num(), wanted.nan_to_num())


@pytest.mark.parametrize("dtype", BOUNDS)
def test_torch_writes_the_bytes_that_the_reference_writes(dtype: torch.dtype) -> None:
    step = Step([1, 5], [6, 5], block_size=3, head_dim=100).to_fp8(per_head=True)
    sizes = torch.logspace(-6, 4, 100)  # past both ends of what e4m3 holds
    key, value = (torch.randn(2, 6, 2, 100) * sizes).to(dtype)
    caches = [[step.keys.clone(), step.values.clone()] for _ in BACKENDS]
    for backend, pair in zip(BACKENDS, caches, strict=True):
        plan = step.plan(backend)  # type: ignore[arg-type]
        dispatch.write_kv(key, value, *pair, plan, step.scales)
    for wanted, found in zip(*caches, strict=True):
        assert same_bytes(wanted, found)
    assert not same_bytes(caches[1][0], step.keys)


@pytest.mark.parametrize("backend", BACKENDS)
def test_copied_and_moved_fp8_blocks_are_equal_to_the_bit(backend: dispatch.Backend) -> None:
    storage, host = random_storage(4, 6, 2, 3, 5), random_storage(4, 3, 2, 3, 5)
    before = storage.clone()
    dispatch.move_blocks(storage, host, [(5, 0), (2, 1)], backend=backend)
    dispatch.copy_blocks(storage, [(0, 5), (5, 2)], backend=backend)
    assert same_bytes(storage[:, 5], before[:, 0])
    assert same_bytes(storage[:, 2], before[:, 0])
    dispatch.move_blocks(host, storage, [(0, 5), (1, 2)], backend=backend)
    assert same_bytes(storage, before)


def test_an_fp8_cache_is_refused_where_no_such_numbers_are_stored() -> None:
    assert dispatch.choose_backend("auto", "cpu", fp8.FP8) == "torch"
    assert dispatch.choose_backend("auto", "mps", torch.float16) == "torch"
    with pytest.raises(ValueError, match="an fp8 cache can't be on mps"):
        dispatch.choose_backend("auto", "mps", fp8.FP8)


def test_scales_and_cache_must_go_together() -> None:
    step = Step([1], [5], block_size=4)
    plain, plan = step.keys, step.plan("torch")
    step.to_fp8(per_head=True)
    with pytest.raises(ValueError, match="needs its scales"):
        dispatch.paged_attention(step.query, step.keys, step.values, plan, 1.0)
    with pytest.raises(ValueError, match="scales belong to an fp8 cache"):
        dispatch.paged_attention(step.query, plain, plain, plan, 1.0, scales=step.scales)
