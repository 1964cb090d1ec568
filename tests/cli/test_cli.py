"""The command line as a user meets it: real processes, streams and exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIELD = re.compile(r"(?<![\w./-])[a-z]+_[a-z_]+(?![\w./])")  # a field's name, not a file's
SEQUENCES = ROOT / "tests" / "data" / "vllm_sequences"


def glassblock(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    """One real run, in English and Chinese, with its trace."""
    trace = tmp_path_factory.mktemp("run") / "run.jsonl.gz"
    done = glassblock(
        "run", "--prompt", "The capital of France is", "--prompt", "中国的首都是",
        "--max-tokens", "6", "--block-size", "4", "--num-blocks", "16",
        "--trace", str(trace), "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), trace


@pytest.mark.model
def test_run_answers_every_prompt_and_prints_nothing_but_json(run: tuple[dict, Path]) -> None:
    answer, _ = run
    assert [r["prompt"] for r in answer["requests"]] == ["The capital of France is", "中国的首都是"]
    assert answer["requests"][0]["outputs"][0]["text"].startswith(" Paris")
    assert all(len(r["outputs"][0]["token_ids"]) == 6 for r in answer["requests"])
    assert answer["summary"]["generated_tokens"] == 12
    assert answer["summary"]["steps"] >= 6


@pytest.mark.model
def test_run_with_an_fp8_cache_says_so_and_reports_its_bytes(run: tuple[dict, Path]) -> None:
    asked = ("run", "--prompt", "The capital of France is", "--max-tokens", "4",
             "--block-size", "4", "--num-blocks", "16", "--kv-cache-dtype", "fp8")  # fmt: skip
    done = glassblock(*asked, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["model"]["kv_dtype"] == "float8_e4m3fn"
    assert answer["config"]["kv_cache_dtype"] == "fp8"
    size = {"float32": 4, "bfloat16": 2, "float16": 2}[run[0]["model"]["dtype"]]
    assert run[0]["model"]["block_bytes"] == size * answer["model"]["block_bytes"]
    assert "KV in fp8" in glassblock(*asked).stdout


@pytest.mark.model
def test_verify_and_replay_read_what_run_wrote(run: tuple[dict, Path]) -> None:
    _, trace = run
    verified = glassblock("verify", str(trace), "--json")
    assert verified.returncode == 0
    assert json.loads(verified.stdout)["ok"] is True
    replayed = json.loads(glassblock("replay", str(trace), "--step", "2", "--json").stdout)
    assert replayed["step"] == 2
    assert set(replayed["block_tables"]) == {"A", "B"}
    held = [block for table in replayed["block_tables"].values() for block in table]
    assert sorted([*held, *replayed["free_queue"]]) == list(range(1, 16))
    last = json.loads(glassblock("replay", str(trace), "--json").stdout)
    assert last["block_tables"] == {}


@pytest.mark.model
def test_a_cut_trace_is_kept_up_to_its_last_whole_step(run: tuple[dict, Path]) -> None:
    _, trace = run
    cut = trace.with_name("cut.jsonl.gz")
    cut.write_bytes(trace.read_bytes()[:-300])
    verified = glassblock("verify", str(cut))
    assert verified.returncode == 1
    assert "damaged" in verified.stderr
    assert "Traceback" not in verified.stderr


@pytest.mark.model
def test_a_request_that_never_fits_is_refused_and_the_others_run() -> None:
    done = glassblock(
        "run", "--prompt", "word " * 60, "--prompt", "Hi", "--max-tokens", "4",
        "--block-size", "4", "--num-blocks", "8", "--json",
    )  # fmt: skip
    assert done.returncode == 1
    first, second = json.loads(done.stdout)["requests"]
    assert "blocks" in first["error"] and not first["outputs"]
    assert len(second["outputs"][0]["token_ids"]) == 4
    assert "request A" in done.stderr


def test_a_vllm_sequence_is_reproduced_and_a_changed_one_is_named(tmp_path: Path) -> None:
    original = SEQUENCES / "kv-small-0.jsonl"
    assert glassblock("verify", "--sequence", str(original)).returncode == 0
    changed = tmp_path / "changed.jsonl"
    lines = original.read_text().splitlines()
    lines[1] = lines[1].replace('"num_free":6', '"num_free":5')
    changed.write_text("\n".join(lines))
    found = glassblock("verify", "--sequence", str(changed), "--json")
    assert found.returncode == 1
    difference = json.loads(found.stdout)["difference"]
    assert (difference["line"], difference["part"]) == (2, "num_free")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run"], 2, "Nothing to run"),
        (["run", "--prompt", ""], 2, "empty"),
        (["run", "--prompt", "x", "--block-size", "0"], 2, "--block-size is 0"),
        (["run", "--prompt", "x", "--max-tokens", "0"], 2, "--max-tokens is 0"),
        (
            ["run", "--prompt", "x", "--num-blocks", "4", "--kv-memory", "1MiB"],
            2,
            "--num-blocks and --kv-memory both",
        ),
        (["run", "--prompt", "x", "--kv-memory", "lots"], 2, "no size"),
        (["run", "--prompt", "x", "--n", "2", "--beam-width", "2"], 2, "--n and --beam-width"),
        (["run", "--prompt", "x", "--stop", ""], 2, "--stop is empty"),
        (["run", "--prompt", "x", "--n", "0"], 2, "--n is 0"),
        (["run", "--prompt", "x", "--beam-width", "2", "--semantics", "v1"], 2, "--beam-width 2"),
        (["run", "--prompt", "x", "--preemption", "swap"], 2, "only in --semantics paper"),
        (["run", "--prompt", "x", "--watermark", "7"], 2, "--watermark is 7.0"),
        (
            ["run", "--prompt", "x", "--allocator", "contiguous", "--prefix-caching"],
            2,
            "--prefix-caching needs --allocator paged",
        ),
        (["bench", "pool", "--turns", "0"], 2, "--turns must be"),
        (["run", "no-such-scenario"], 2, "the scenarios are"),
        (["run", "tour", "--prompt", "x"], 2, "its own prompts"),
        (["run", "--prompt", "x", "--trace", "no/such/folder/t.jsonl"], 2, "can't be written"),
        (["run", "--prompt", "x", "--model", "no/such/model"], 1, "no/such/model"),
        (["run", "--prompt", "x", "--kv-cache-dtype", "int8"], 2, "'auto', 'fp8'"),
        (
            ["run", "--prompt", "x", "--backend", "numba", "--kv-cache-dtype", "fp8"],
            2,
            "--backend numba has no loops for --kv-cache-dtype fp8",
        ),
        (["run", "--prompt", "x", "--device", "tpu"], 1, "no usable device tpu"),
        (["run", "--prompt", "x", "--trace", "x" * 300], 2, "can't be written"),
        (["run", "--prompt", "\udcff"], 2, "UTF-8"),
        (["replay", "no-such-file.jsonl"], 1, "no-such-file.jsonl"),
        (["replay", "README.md"], 1, "not a glassblock trace"),
        (["verify"], 2, "required"),
        (["frobnicate"], 2, "frobnicate"),
        (["serve", "--port", "99999"], 2, "--port is 99999"),
    ],
)
def test_bad_input_gets_one_line_on_stderr_and_nothing_on_stdout(
    arguments: list[str], code: int, words: str
) -> None:
    done = glassblock(*arguments)
    lines = [line for line in done.stderr.splitlines() if "glassblock: model: " not in line]
    faults = [line for line in lines if line != "glassblock: loading the model"]
    assert done.returncode == code
    assert done.stdout == ""
    assert len(faults) == 1 and words in faults[0], done.stderr
    names = faults[0].partition("the scenarios are")[0]
    assert not FIELD.search(names), "a setting is called by its flag"


def test_help_names_every_subcommand() -> None:
    done = glassblock("--help")
    assert done.returncode == 0
    for name in ("serve", "run", "replay", "verify"):
        assert name in done.stdout
