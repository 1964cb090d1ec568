"""Every benchmark runs, small, and answers in one form; no time is ever asserted."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from app import bench_ui
from app.cli import main
from core.bench import vllm_peer
from core.bench.report import Report, Row, Spread, in_turns
from core.errors import BenchError
from core.exec import bench_engine, bench_kernels
from core.exec.model import LoadedModel, from_parts
from kernels import numba_paged, torch_paged
from tests.exec.tiny_models import CONFIGS, VOCAB, build


def _bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["bench", *arguments, "--json"]) == 0
    plain: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert plain["command"].startswith(f"glassblock bench {arguments[0]}")
    assert plain["machine"]["processor"]
    for row in plain["rows"]:
        assert row["figures"], row["name"]
        for spread in row["figures"].values():
            assert spread["low"] <= spread["median"] <= spread["high"]
    return plain


def test_the_pools_bench_names_every_operation(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "pool.json"
    plain = _bench(
        capsys, "pool", "--turns", "2", "--share", "0.001", "--out", str(out), "--note", "A note."
    )
    assert len(plain["rows"]) == 9
    assert plain["ways"][0] == "glassblock"
    assert plain["notes"][-1] == "A note."
    assert json.loads(out.read_text())["rows"] == plain["rows"]
    naive = [row for row in plain["rows"] if "naive list" in row["figures"]]
    assert [row["name"].partition(":")[0] for row in naive] == ["pool"] * 4


def test_without_vllm_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise ModuleNotFoundError("No module named 'vllm'")

    monkeypatch.setattr(vllm_peer, "_names", absent)
    peer, reason = vllm_peer.find_vllm(10)
    assert peer is None
    assert reason == "ModuleNotFoundError: No module named 'vllm'"


def test_the_kernels_bench_checks_and_then_measures(capsys: pytest.CaptureFixture[str]) -> None:
    plain = _bench(capsys, "kernels", "--turns", "2", "--cases", "2", "--copied", "1")
    assert [row["name"].partition(" tokens")[0] for row in plain["rows"]] == [
        "1 x 4,096", "1 x 4,096", "16 x 128", "16 x 128",
    ]  # fmt: skip
    ways = {"glassblock, compiled", "glassblock, torch", "torch, contiguous", "copy of memory"}
    assert all(set(row["figures"]) == ways for row in plain["rows"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(4))
def test_kernels_that_are_right_pass_the_check(dtype: torch.dtype, seed: int) -> None:
    bench_kernels.check_kernels(dtype, seed)


@pytest.mark.parametrize(
    ("module", "planner"), [(torch_paged, "make_groups"), (numba_paged, "make_decodes")]
)
def test_a_kernel_that_reads_a_wrong_block_is_found(
    module: Any, planner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of what it then reads was never written."""
    right = getattr(module, planner)

    def wrong(tables: torch.Tensor, *others: Any) -> Any:
        return right(tables + 1 - 2 * (tables > 0), *others)

    monkeypatch.setattr(module, planner, wrong)
    with pytest.raises(BenchError, match="nothing was measured"):
        bench_kernels.check_kernels(torch.float32, 1)


def _small(family: str) -> tuple[Any, LoadedModel]:
    """A tiny model twice, with a tokenizer of one word a token."""
    words = Tokenizer(WordLevel({str(number): number for number in range(VOCAB)}, unk_token="0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    plain = build(CONFIGS[family]())
    plain.set_attn_implementation("sdpa")
    return plain, from_parts(build(CONFIGS[family]()), tokenizer, name=family)


def _engine_report() -> Report:
    plain, loaded = _small("llama")
    jobs = bench_engine.workload(loaded.info.vocab_size, requests=3, longest=6)
    bench_engine.check_tokens(loaded, plain, jobs)
    return bench_engine.bench_engine(loaded, plain, jobs, turns=1, command="again")


def test_the_engines_bench_compares_four_ways() -> None:
    report = _engine_report()
    assert len(report.ways) == 4
    for row in report.rows:
        assert set(row.figures) == set(report.ways)
        assert all(spread.median > 0 for spread in row.figures.values()), row.name
    assert "transformers, static" in report.text()
    assert set(report.plain()["rows"][0]["gains"]) == set(report.ways[1:])


def test_more_requests_than_a_batch_has_rows_wait_in_the_same_memory() -> None:
    plain, loaded = _small("llama")
    jobs = bench_engine.workload(loaded.info.vocab_size, requests=5, longest=20)
    report = bench_engine.bench_engine(loaded, plain, jobs, batch=2, turns=1)
    longest = max(len(job.prompt) for job in jobs) + max(job.count for job in jobs)
    slots = report.settings["slots"]
    assert 2 * longest <= slots < 2 * longest + 16
    assert report.settings["rows of a static batch"] == 2


def test_other_tokens_than_generates_are_not_measured() -> None:
    _, loaded = _small("llama")
    other, _ = _small("mistral")
    jobs = bench_engine.workload(loaded.info.vocab_size, requests=1, longest=6)
    with pytest.raises(BenchError, match="prompt 1"):
        bench_engine.check_tokens(loaded, other, jobs)


def test_the_simulators_bench_runs_a_tenth_beside_the_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = _bench(capsys, "simulate", "--limit", "40")
    requests = plain["rows"][0]["figures"]
    assert requests["glassblock"]["median"] == 40
    assert requests["its first tenth"]["median"] == 4


def test_a_workload_that_cannot_be_read_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "torn.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,many,44\n")
    assert main(["bench", "simulate", "--azure", str(file)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "line 2" in said.err


def test_the_table_says_under_each_peer_how_ours_compares() -> None:
    figures = {"ours": Spread.of([2.0]), "it": Spread.of([3.0]), "none": Spread.of([1.0])}
    rows = (Row("append", "us", "less", figures), Row("sent", "bytes", "less", figures))
    text = Report("pool", "", {}, {}, tuple(figures), rows).text()
    head, first, under, _, last = text.splitlines()[1:]
    assert under.index("1.50 x faster") + 13 == head.index("it") + 2
    assert under.endswith("2.00 x slower")
    assert "1.50 x better" in last
    assert max(map(len, (first, under, last))) == len(head)


def test_without_a_browser_one_sentence_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_ui.shutil, "which", lambda name: None)
    assert main(["bench", "ui", "--turns", "1"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "is not here" in said.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["pool", "--turns", "0"], "turns must be at least 1"),
        (["engine", "--threads", "0"], "threads must be at least 1"),
        (["pool", "--share", "0"], "share must be above 0"),
        (["pool", "--share", "nan"], "share must be above 0"),
        (["simulate", "--limit", "0"], "limit must be at least 1"),
        (["simulate", "--azure", "nowhere.csv"], "nowhere.csv is no file"),
        (["pool", "--out", "nowhere/at/all.json"], "name a file, in a folder that is there"),
        (["pool", "--out", "/"], "name a file, in a folder that is there"),
    ],
)
def test_bad_options_are_a_usage_error(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_ways_alternate_and_every_second_turn_goes_backwards() -> None:
    order: list[str] = []

    def way(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = in_turns({"a": lambda: way("a"), "b": lambda: way("b")}, 3)
    assert "".join(order) == "abbaab"
    assert found == {"a": [1, 4, 5], "b": [2, 3, 6]}


def test_a_gain_is_above_one_where_ours_is_better() -> None:
    figures = {"ours": Spread.of([2.0]), "it": Spread.of([3.0]), "none": Spread.of([0.0])}
    assert Row("a", "s", "less", figures).gain("ours", "it") == 1.5
    assert Row("a", "per s", "more", figures).gain("ours", "it") == pytest.approx(2 / 3)
    assert Row("a", "per s", "more", figures).gain("ours", "none") is None
    assert Row("a", "s", "", figures).gain("ours", "it") is None
