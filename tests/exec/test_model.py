"""Models are found, converted once, checked, and refused with the reason."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    PreTrainedTokenizerFast,
    T5Config,
)

from core.errors import ModelError
from core.exec import faithful, model, pack, tune
from core.exec.model import from_parts, load_model
from core.text import catalogue
from tests.exec.tiny_models import (
    CONFIGS,
    VOCAB,
    HandScheduler,
    build,
    generate,
    make_request,
    pair,
)

ROOT = Path(__file__).parents[2]


def _folder(path: Path, family: str = "llama") -> Path:
    build(CONFIGS[family]()).save_pretrained(path)
    from tests.exec.test_tokenizer import CODECS

    tokenizer: PreTrainedTokenizerFast = CODECS["byte level"]._tokenizer
    tokenizer.save_pretrained(path)
    return path


def test_a_local_folder_loads_and_gives_its_own_tokens(tmp_path: Path) -> None:
    said: list[str] = []
    loaded = load_model(str(_folder(tmp_path)), dtype="float32", device="cpu", progress=said.append)
    assert said == ["load", "check", "ready"]
    assert loaded.info.name == tmp_path.name
    assert (loaded.info.layers, loaded.info.kv_heads, loaded.info.head_dim) == (3, 2, 8)
    assert loaded.info.dtype == "float32"
    assert loaded.info.max_model_len == 256
    request = make_request([5, 6, 7], max_tokens=8)
    HandScheduler(loaded).run([request])
    assert request.sequences[0].output_token_ids == generate(pair("llama")[0], [5, 6, 7], 8)


def test_windows_of_each_layer_are_known() -> None:
    assert pair("mistral")[1].info.windows == (9, 9, 9)
    assert pair("gemma2")[1].info.windows == (9, None, 9)
    assert pair("llama")[1].info.windows == (None, None, None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere", "No model at ./nowhere"),
        ("/nowhere/at/all", "No model at"),
        ("missing.gguf", "No model at missing.gguf"),
        ("", "No model at"),
    ],
)
def test_a_model_that_is_not_there_is_named(name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(name)


def test_a_hub_id_that_cannot_be_reached_says_what_to_do(monkeypatch: Any) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("offline")

    monkeypatch.setattr(model.AutoConfig, "from_pretrained", refuse)
    with pytest.raises(ModelError, match="neither on this computer nor reachable"):
        load_model("owner/model")


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b'{"model_type": "unheard-of"}'),
        ("model.safetensors", b"not weights"),
        ("tokenizer.json", b"{}"),
    ],
)
def test_damaged_files_are_one_sentence(tmp_path: Path, file: str, content: bytes) -> None:
    _folder(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ModelError, match="can't be read") as caught:
        load_model(str(tmp_path), dtype="float32", device="cpu")
    assert "\n" not in str(caught.value)


def test_missing_weights_are_not_replaced_by_random_ones(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    _folder(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks weights \(the first is model\.norm\.weight\)"):
        load_model(str(tmp_path), dtype="float32", device="cpu")


def test_a_damaged_gguf_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF, but no more")
    with pytest.raises(ModelError, match="x can't be read"):
        load_model(str(tmp_path / "x.gguf"))


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (T5Config(), "model_encoder_decoder"),
        (MambaConfig(), "model_recurrent"),
        (LlamaConfig(layer_types=["chunked_attention"] * 32), "model_chunked"),
        (LlamaConfig(attention_chunk_size=8), "model_chunked"),
        (LlamaConfig(num_kv_shared_layers=2), "model_shared_kv"),
        (LlamaConfig(use_bidirectional_attention=True), "model_not_causal"),
    ],
)
def test_a_configuration_that_rules_paging_out_is_refused(config: Any, code: str) -> None:
    with pytest.raises(ModelError) as caught:
        faithful.check_config("it", config)
    assert caught.value.code == code


def _tiny(config: Any) -> Any:
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def test_attention_sinks_are_refused() -> None:
    config = GptOssConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=4,
    )
    with pytest.raises(ModelError) as caught:
        from_parts(_tiny(config), None, name="sunk")
    assert caught.value.code == "model_sinks"


def test_a_model_with_attention_of_its_own_is_refused() -> None:
    config = BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4)
    with pytest.raises(ModelError) as caught:
        from_parts(_tiny(config), None, name="own")
    assert caught.value.code in ("model_ignores_attention", "model_no_forward")


def test_a_window_that_does_not_reach_attention_is_refused() -> None:
    llama = build(CONFIGS["llama"]())
    llama.config.sliding_window = 5
    with pytest.raises(ModelError) as caught:
        from_parts(llama, None, name="wide")
    assert caught.value.code == "model_window"


def test_a_model_whose_results_would_differ_is_refused() -> None:
    llama = build(CONFIGS["llama"]())
    for layer in llama.model.layers:  # a factor that only its own attention knows

        def skewed(rows: Any, plain: Any = layer.self_attn.v_proj.forward) -> Any:
            return plain(rows) * (1 + (llama.config._attn_implementation == "eager"))

        layer.self_attn.v_proj.__dict__["forward"] = skewed
    with pytest.raises(ModelError) as caught:
        faithful.check_model("skewed", llama)
    assert caught.value.code == "model_differs"


def test_rotary_scaling_that_depends_on_the_batch_limits_the_context() -> None:
    factors = [1.0] * 4
    config = LlamaConfig(
        max_position_embeddings=4096,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": factors,
            "long_factor": factors,
            "original_max_position_embeddings": 1024,
            "factor": 4.0,
        },
        head_dim=8,
    )
    assert faithful.longest_context(config) == 1024


def test_packed_layers_give_the_same_numbers() -> None:
    layer = torch.nn.Linear(24, 40)
    rows = torch.randn(2, 5, 24)
    wanted = layer(rows)
    assert pack.pack_linears(torch.nn.Sequential(layer)) == layer.weight.nbytes
    with torch.inference_mode():
        torch.testing.assert_close(layer(rows), wanted, atol=1e-5, rtol=1e-5)
        assert layer(rows[:, :0]).shape == (2, 0, 40)


def test_a_large_model_is_not_packed(monkeypatch: Any) -> None:
    monkeypatch.setattr(pack, "MAX_BYTES", 100)
    layer = torch.nn.Linear(24, 40)
    assert pack.pack_linears(torch.nn.Sequential(layer)) == 0
    assert "forward" not in layer.__dict__


class _NoOperations:
    """torch.ops.mkldnn of a build that lacks the operations."""


class _OtherNumbers:
    """Operations that run, and are off by a tenth."""

    def __init__(self, plain: Any) -> None:
        self._reorder_linear_weight = plain._reorder_linear_weight
        self._linear_pointwise = self
        self._product = plain._linear_pointwise.default

    def default(self, *args: Any) -> torch.Tensor:
        result: torch.Tensor = self._product(*args) * 1.1
        return result


class _OtherArguments:
    """Operations of a torch that wants them called in another way."""

    def __init__(self) -> None:
        self._linear_pointwise = self
        self.default = self._reorder_linear_weight = self._refuse

    def _refuse(self) -> None:
        raise AssertionError("a call with arguments doesn't get here")


@pytest.mark.parametrize(
    "operations",
    [_NoOperations(), _OtherNumbers(torch.ops.mkldnn), _OtherArguments()],
    ids=["missing", "other numbers", "other arguments"],
)
def test_layers_stay_plain_where_packing_is_not_to_be_trusted(
    monkeypatch: Any, operations: Any
) -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.Linear(40, 8, bias=False))
    rows = torch.randn(3, 24)
    wanted = layers(rows)
    monkeypatch.setattr(pack, "_operations", lambda: operations)
    assert pack.pack_linears(layers) == 0
    assert all("forward" not in layer.__dict__ for layer in layers)
    assert torch.equal(layers(rows), wanted)


def test_layers_stay_plain_in_a_torch_without_onednn(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert pack.pack_linears(torch.nn.Linear(24, 40)) == 0


def test_a_gguf_file_is_parsed_once_and_nothing_stays_changed(monkeypatch: Any) -> None:
    import gguf
    from transformers import modeling_gguf_pytorch_utils as loader

    from core.exec.gguf_reading import gguf_read_once

    opened: list[str] = []
    monkeypatch.setattr(gguf, "GGUFReader", lambda path: opened.append(path) or object())
    before = (gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm)
    with pytest.raises(KeyError), gguf_read_once():
        assert gguf.GGUFReader("a") is gguf.GGUFReader("a")
        assert gguf.GGUFReader("b") is not gguf.GGUFReader("a")
        raise KeyError
    assert opened == ["a", "b"]
    assert (gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm) == before


GGUF = """
import sys
from core.exec.model import _PACKAGE, load_model
from importlib.util import find_spec
from pathlib import Path
(folder,) = find_spec(_PACKAGE).submodule_search_locations
load_model(str(next(Path(folder).glob("*.gguf"))), dtype="float32", device="cpu")
"""


@pytest.mark.model
@pytest.mark.slow
def test_loading_a_gguf_file_leaves_the_terminal_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", GGUF], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_a_measured_choice_is_remembered(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("GLASSBLOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tune, "_TURNS", 2)
    monkeypatch.setattr(tune, "_BUDGET", 10_000)
    monkeypatch.setattr(tune, "_is_idle", lambda: False)
    sizes = tune.MatrixSizes(layer=((16, 8), (8, 16)), output=(50, 8))
    threads = torch.get_num_threads()
    first = tune.choose(sizes)
    assert first.dtype in ("float32", "bfloat16")
    assert torch.get_num_threads() == threads
    monkeypatch.setattr(tune, "_measure", lambda _: pytest.fail("measured again"))
    assert tune.choose(sizes) == first
    (tmp_path / "cache" / "tuning.json").write_text("damaged")
    monkeypatch.setattr(tune, "_measure", lambda _: first)
    assert tune.choose(sizes) == first
    assert len(json.loads((tmp_path / "cache" / "tuning.json").read_text())) == 1


def test_a_choice_from_a_busy_time_is_measured_again_on_an_idle_machine(
    monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("GLASSBLOCK_CACHE", str(tmp_path))
    sizes = tune.MatrixSizes(layer=((16, 8),), output=(50, 8))
    busy, idle = (tune.Tuning("float32", count, {}, busy=count == 1) for count in (1, 2))
    monkeypatch.setattr(tune, "_measure", lambda _: busy)
    assert tune.choose(sizes) == busy
    monkeypatch.setattr(tune, "_measure", lambda _: idle)
    monkeypatch.setattr(tune, "_is_idle", lambda: False)
    assert tune.choose(sizes) == busy
    monkeypatch.setattr(tune, "_is_idle", lambda: True)
    assert tune.choose(sizes) == idle
    monkeypatch.setattr(tune, "_measure", lambda _: pytest.fail("measured again"))
    assert tune.choose(sizes) == idle


def test_a_candidate_that_is_far_behind_gets_no_more_turns(monkeypatch: Any) -> None:
    class Trial:
        def __init__(self, seconds: float) -> None:
            self.runs, self._seconds = 0, seconds

        def seconds(self) -> float:
            self.runs += 1
            return self._seconds

    quick, slow = Trial(1.0), Trial(4.0)
    threads = torch.get_num_threads()
    turns = tune._in_turns({"quick": quick, "slow": slow}, [threads])
    assert (quick.runs, slow.runs) == (tune._TURNS, 1)
    assert turns["slow", threads] == [4.0]


def test_both_languages_have_every_sentence_of_a_model_error() -> None:
    wanted = {key for key in catalogue("en") if key.startswith("error.model_")}
    assert len(wanted) > 15
    assert wanted == {key for key in catalogue("zh") if key.startswith("error.model_")}


CONVERT = """
import sys
from core.exec.model import load_model
print(load_model(dtype="float32", device="cpu").info.name)
"""


@pytest.mark.model
@pytest.mark.slow
def test_two_processes_convert_the_default_model_at_once(tmp_path: Path) -> None:
    import os

    settings = {**os.environ, "GLASSBLOCK_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", CONVERT],
            env=settings,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in running:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert out.strip() == model.DEFAULT_MODEL
        assert err == ""
    (folder,) = (tmp_path / "models").iterdir()
    assert (folder / "model.safetensors").is_file()


@pytest.mark.model
def test_the_default_models_greedy_tokens_equal_generate() -> None:
    loaded = load_model(dtype="float32", device="cpu")
    texts = ["Hello", "Count: one, two, three,", "什么是缓存？请解释。", "def add(a, b):"]
    codec = loaded.codec
    prompts = [codec.encode(texts[0], chat=True), *map(codec.encode, texts[1:])]
    requests = [
        make_request(ids, f"r{index}", max_tokens=12, ignore_eos=True)
        for index, ids in enumerate(prompts)
    ]
    HandScheduler(loaded, block_size=16, num_blocks=40, chunk=20).run(requests)
    plain = AutoModelForCausalLM.from_pretrained(
        loaded.model.config._name_or_path, dtype=torch.float32
    )
    plain.generation_config.eos_token_id = None
    for ids, request in zip(prompts, requests, strict=True):
        assert request.sequences[0].output_token_ids == generate(plain, ids, 12)
