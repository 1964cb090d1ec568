"""`glassblock simulate` as a user meets it."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core.machine import processor_name
from core.workload.sim_result import SimulationResult
from tests.cli.test_cli import FIELD, ROOT, glassblock

SMALL = ("simulate", "--workload", "synthetic", "--requests", "30", "--rate", "20")


def test_json_is_all_that_stands_on_stdout() -> None:
    done = glassblock(*SMALL, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    summary = answer["summary"]
    assert (summary["requests"], summary["finished"], summary["refused"]) == (30, 30, 0)
    assert sum(summary["breakdown"].values()) == pytest.approx(1)
    assert summary["measured"] is False
    codes = [item["code"] for item in summary["assumptions"]]
    assert {"roofline", "hardware", "model", "pool", "context"} <= set(codes)


def test_an_fp8_cache_gives_the_same_memory_twice_the_slots() -> None:
    found = []
    for kind in ("auto", "fp8"):
        done = glassblock(*SMALL, "--kv-cache-dtype", kind, "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)["summary"]["assumptions"]
        values = {item["code"]: item["values"] for item in told}
        found.append((values["pool"]["slots"], values["model"]["slot_bytes"]))
    (plain, wide), (small, narrow) = found
    assert wide == 2 * narrow
    assert small == pytest.approx(2 * plain, abs=32)  # whole blocks, one of them reserved


def test_a_reader_is_told_what_is_modelled_and_what_was_assumed() -> None:
    done = glassblock(*SMALL, "--system", "orca-pow2", "--num-slots", "15729",
                      "--model-shape", "opt-13b", "--hardware", "a100-40gb")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "30 of 30 finished" in done.stdout
    assert done.stdout.count("modelled") >= 5
    assert "vendor data sheet" in done.stdout
    assert "15,729 slots" in done.stdout


def test_a_lengths_file_goes_through_and_its_result_and_trace_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "few.csv"
    file.write_text("prompt,output,arrival\n40,10,0\n9000,10,0.5\n20,30,1\n")
    out, trace = tmp_path / "few.json", tmp_path / "few.jsonl"
    done = glassblock("simulate", "--workload", str(file), "--num-blocks", "20",
                      "--out", str(out), "--trace", str(trace))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 of 3 finished, 1 refused" in done.stdout
    assert "request 2:" in done.stdout
    result = SimulationResult.from_json(out.read_text(encoding="utf-8"))
    assert result.summary.generated_tokens == 40
    assert len(result.series.time) > 10
    assert glassblock("verify", str(trace)).returncode == 0
    replayed = json.loads(glassblock("replay", str(trace), "--step", "2", "--json").stdout)
    assert replayed["computed_tokens"] == {"1": 41}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Nothing to simulate"),
        (("--workload", "synthetic", "--hardware", "abacus"), "abacus"),
        (("--workload", "synthetic", "--model-shape", "opt-175b"), "opt-175b leaves no room"),
        (("--workload", "synthetic", "--num-blocks", "few"), "'few'"),
        (("--workload", "synthetic", "--num-slots", "9", "--num-blocks", "9"), "one size"),
        (("--workload", "synthetic", "--system", "static", "--num-blocks", "unlimited"), "paged"),
        (("--workload", "nowhere.csv"), "nowhere.csv"),
        (("--workload", "README.md", "--rate", "3"), "--rate goes with"),
        (("--workload", "synthetic", "--limit", "0"), "--limit is 0"),
        (("--workload", "synthetic", "--utilisation", "7"), "--utilisation is 7"),
        (("--workload", "synthetic", "--requests", "0"), "--requests is 0"),
        (("--workload", "synthetic", "--prompt-mean", "0"), "--prompt-mean is 0"),
        (("--workload", "synthetic", "--prompt-mean", "5000"), "--max-total 2048"),
        (("--workload", "synthetic", "--rate-scale", "0"), "--rate-scale is 0"),
        (("--workload", "synthetic", "--gpus", "0"), "--gpus is 0"),
        (("--workload", "synthetic", "--dtype", "fp8"), "--dtype fp8"),
        (("--workload", "synthetic", "--max-num-seqs", "0"), "--max-num-seqs is 0"),
        (("--workload", "synthetic", "--num-slots", "1"), "--num-slots is 1"),
        (
            ("--workload", "synthetic", "--system", "static", "--num-slots", "99999999"),
            "--num-slots is 99999999",
        ),
        (("--workload", "synthetic", "--seed", "-1"), "--seed is -1"),
        (("--paper", "figure2", "--requests", "0"), "--requests is 0"),
        (("--paper", "figure2", "--requests", "3"), "With --requests 3"),
        (("--workload", "synthetic", "--out", "no/such/place.json"), "no/such/place.json"),
    ],
)
def test_a_wrong_word_gets_one_line_that_names_it(arguments: tuple[str, ...], words: str) -> None:
    done = glassblock("simulate", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not FIELD.search(done.stderr), "a setting is called by its flag"


def test_a_rate_of_drawn_arrivals_bears_its_own_flag(tmp_path: Path) -> None:
    file = tmp_path / "few.csv"
    file.write_text("prompt,output\n40,10\n")
    done = glassblock("simulate", "--workload", str(file), "--retime", "0")
    assert done.returncode == 2 and "--retime is 0" in done.stderr


def test_a_refused_request_names_flags_and_the_command_repeats_the_run(tmp_path: Path) -> None:
    (tmp_path / "few.csv").write_text("prompt,output,arrival\n40,10,0\n900,10,0.5\n")
    options = ("simulate", "--workload", "few.csv", "--num-blocks", "20", "--block-size", "8")
    done = glassblock(*options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "enlarge --num-blocks" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("repeat: ")]
    first = json.loads(glassblock(*options, "--json", cwd=tmp_path).stdout)
    words = shlex.split(line.removeprefix("repeat: glassblock "))
    second = json.loads(glassblock(*words, "--json", cwd=tmp_path).stdout)
    for answer in (first, second):
        del answer["summary"]["wall_seconds"]
    assert first == second and first["command"] == line.removeprefix("repeat: ")


def test_a_papers_record_says_what_repeats_it_and_on_what_it_was_made(tmp_path: Path) -> None:
    out = tmp_path / "table1.json"
    done = glassblock("simulate", "--paper", "table1", "--out", str(out))
    assert done.returncode == 0, done.stderr
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["command"] == "glassblock simulate --paper table1"
    assert record["machine"] == processor_name() and record["rows"]


def test_an_interrupted_run_prints_what_it_has() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cli", "simulate", "--workload", "synthetic", "--json",
         "--requests", "200000", "--preset", "alpaca"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    first = process.stderr.readline()  # progress: it runs, and listens to signals
    assert "200,000 requests" in first, first
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    answer = json.loads(stdout)
    assert answer["cancelled"] is True
    assert 0 < answer["summary"]["finished"] < 200_000
    assert "interrupted" in stderr


def test_a_result_that_can_not_be_written_is_still_told() -> None:
    done = glassblock(*SMALL, "--out", "/dev/full")
    assert done.returncode == 1 and "30 of 30 finished" in done.stdout
    assert "/dev/full can't be written" in done.stderr and "Traceback" not in done.stderr


def test_a_trace_that_nobody_could_read_is_refused_before_the_run(tmp_path: Path) -> None:
    done = glassblock(*SMALL, "--num-blocks", "2000000", "--trace", str(tmp_path / "x.jsonl"))
    assert done.returncode == 2 and "2000000 blocks" in done.stderr and not done.stdout
    wide = ("--system", "orca-max", "--hardware", "h200", "--dtype", "fp8")
    done = glassblock(*SMALL, *wide, "--trace", str(tmp_path / "y.jsonl"))
    assert done.returncode == 0, done.stderr
    assert glassblock("verify", str(tmp_path / "y.jsonl")).returncode == 0


def test_the_place_of_a_papers_result_is_looked_at_before_the_work(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "no" / "x.json")
    done = glassblock("simulate", "--paper", "figure2", "--requests", "3", "--out", nowhere)
    assert done.returncode == 2 and "can't be written" in done.stderr


def test_blocks_of_no_slots_are_refused() -> None:
    done = glassblock(*SMALL, "--block-size", "0")
    assert done.returncode == 2 and "--block-size is 0" in done.stderr
