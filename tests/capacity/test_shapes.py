"""Shapes and hardware against figures that others published."""

import pytest

from core.capacity.hardware import GIB, HARDWARE, find_hardware
from core.capacity.shapes import SHAPES, find_shape, kv_memory
from core.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "slot"),
    [("opt-13b", 819_200), ("opt-66b", 2_359_296), ("opt-175b", 4_718_592)],
)
def test_a_slot_weighs_what_the_papers_table_says(name: str, slot: int) -> None:
    assert find_shape(name).slot_bytes() == slot


@pytest.mark.parametrize(
    ("name", "blocks"),
    [("llama-2-7b", 512), ("llama-3-8b", 2048), ("mistral-7b", 2048), ("qwen2.5-7b", 4681),
     ("opt-125m", 7281)],
)  # fmt: skip
def test_four_gib_of_swap_hold_as_many_blocks_as_vllm_logs(name: str, blocks: int) -> None:
    assert 4 * GIB // (16 * find_shape(name).slot_bytes()) == blocks


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-2-7b", 6.74), ("llama-3.1-8b", 8.03), ("mistral-7b", 7.24), ("qwen2.5-7b", 7.62),
     ("opt-13b", 12.85), ("smollm2-135m", 0.1345), ("llama-2-70b", 68.98)],
)  # fmt: skip
def test_weights_counted_from_the_shape_meet_the_published_count(
    name: str, billions: float
) -> None:
    assert find_shape(name).params / 1e9 == pytest.approx(billions, rel=0.002)


def test_the_kv_cache_gets_what_the_weights_and_the_runtime_leave() -> None:
    hardware, shape = HARDWARE["h100-80gb"], SHAPES["llama-3.1-8b"]
    rest = 79.19 * 0.9 - shape.weight_bytes() / GIB - 0.25 - 1.89  # vLLM's own terms, in GiB
    assert kv_memory(hardware, shape) / GIB == pytest.approx(rest, abs=0.06)
    two = kv_memory(hardware, shape, gpus=2)
    assert two > 2 * kv_memory(hardware, shape), "the weights are there once, not twice"


def test_a_model_that_leaves_no_room_is_refused_with_both_sizes() -> None:
    with pytest.raises(ConfigError, match=r"opt-175b.*325\.2 GiB.*a100-40gb"):
        kv_memory(HARDWARE["a100-40gb"], SHAPES["opt-175b"])


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    assert find_hardware("H100-80GB").title.startswith("NVIDIA H100")
    with pytest.raises(ConfigError, match="a100-40gb"):
        find_hardware("a1000")
    with pytest.raises(ConfigError, match="opt-13b"):
        find_shape("gpt-5")


@pytest.mark.parametrize("name", list(HARDWARE))
def test_every_device_says_where_its_peaks_come_from(name: str) -> None:
    device = HARDWARE[name]
    assert device.source
    assert device.flops
    assert all(device.peak(dtype) > 0 for dtype in device.flops)
    with pytest.raises(ConfigError, match="int3"):
        device.peak("int3")
