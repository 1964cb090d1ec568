"""`glassblock compare` as a user meets it: one line for what is wrong, JSON alone on stdout."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from core.trace.trace import load_trace
from core.trace.verify import verify
from tests.cli.test_cli import ROOT, glassblock


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--systems", "paged"), "--systems names fewer than two"),
        (("--systems", "paged,orca"), "--systems names orca"),
        (("--repeat", "0"), "--repeat is 0"),
        (("--waterfall", "--systems", "paged,static"), "leave --systems out"),
        (("--slots", "3"), "--slots 3 holds no block of 16"),
        (("--slots", "0"), "--slots is 0"),
        (("--max-num-seqs", "0"), "--max-num-seqs is 0"),
        (("--block-size", "0"), "--block-size is 0"),
        (("no_such_thing",), "no_such_thing"),
    ],
)
def test_what_can_not_work_is_one_line_before_a_model_loads(
    arguments: tuple[str, ...], words: str
) -> None:
    done = glassblock("compare", *arguments)
    assert done.returncode == 2 and not done.stdout
    assert words in done.stderr and len(done.stderr.strip().splitlines()) == 1


@pytest.mark.model
def test_systems_are_compared_proved_and_their_traces_kept(tmp_path: Path) -> None:
    done = glassblock(
        "compare", "one_prompt", "--systems", "static,buddy,shared", "--prove", "--json",
        "--trace-dir", str(tmp_path / "traces"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [item["system"] for item in report["systems"]] == ["static", "buddy", "shared"]
    assert all(item["same_tokens"] for item in report["systems"]) and report["measured"]
    assert [proof["equal"] for proof in report["proofs"]] == [True, True]
    assert all(proof["rows"]["compared"] for proof in report["proofs"])
    for name in ("static", "buddy", "shared"):
        assert verify(load_trace(tmp_path / "traces" / f"{name}.jsonl.gz")).ok


@pytest.mark.model
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_comparison_keeps_the_runs_that_were_done(
    number: signal.Signals, tmp_path: Path
) -> None:
    command = [
        sys.executable, "-m", "app.cli", "compare", "one_prompt", "--systems", "static,paged",
        "--repeat", "100", "--trace-dir", str(tmp_path), "--json",
    ]  # fmt: skip
    work = subprocess.Popen(
        command, cwd=ROOT, text=True, env=dict(os.environ), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert work.stderr is not None
    for line in work.stderr:
        if "round 2: static" in line:
            work.send_signal(number)
            break
    out, err = work.communicate(timeout=180)
    assert work.returncode == 1 and "Traceback" not in err
    assert "of 200 runs were done and are kept" in err
    report = json.loads(out)
    assert all(item["rates"] for item in report["systems"])
    assert verify(load_trace(tmp_path / "paged.jsonl.gz")).ok
