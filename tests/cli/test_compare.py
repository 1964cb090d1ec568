"""`glassblock compare` as a user meets it: one line for what is wrong, JSON alone on stdout."""

import json
from pathlib import Path

import pytest

from core.trace.trace import load_trace
from core.trace.verify import verify
from tests.cli.test_cli import glassblock


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--systems", "paged"), "two systems at least"),
        (("--systems", "paged,orca"), "no system orca"),
        (("--repeat", "0"), "repeat is 0"),
        (("--waterfall", "--systems", "paged,static"), "leave --systems out"),
        (("--slots", "3"), "no block of 16"),
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
