"""The README is a promise: its commands, numbers of files and pictures are checked here."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line for block in re.findall(r"```(?:sh|bash)\n(.*?)```", README, re.S)
    for line in block.splitlines() if line and not line.startswith("#")
]  # fmt: skip


def test_the_ci_runs_the_readmes_own_test_command() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    tests = [line for line in COMMANDS if "pytest" in line]
    assert tests and all(line in ci for line in tests)


def test_the_first_command_starts_the_app() -> None:
    assert COMMANDS[0] == "pip install uv && uv run glassblock"


def test_every_glassblock_command_of_the_readme_parses() -> None:
    names = {line.split()[3] for line in COMMANDS if line.startswith("uv run glassblock ")}
    assert names
    for name in names:
        done = subprocess.run(
            [sys.executable, "-m", "app.cli", name, "--help"],
            cwd=ROOT, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, (name, done.stderr)
        for line in COMMANDS:
            for flag in re.findall(r" (--[a-z-]+)", line if f"glassblock {name}" in line else ""):
                assert flag in done.stdout, (name, flag)


def test_every_picture_and_file_that_the_readme_names_is_there() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_speed_that_the_readme_tells_is_the_recorded_one() -> None:
    told = " ".join(README.split("## How fast it is")[1].split("## ")[0].split())
    for name in ("bench_engine", "bench_engine_at_once"):
        path = ROOT / "assets" / "results" / f"{name}.json"
        row = json.loads(path.read_text(encoding="utf-8"))["rows"][0]
        ours = row["figures"]["glassblock, trace on"]["median"]
        assert f"{ours:.0f}" in told
        for way in ("transformers, continuous", "transformers, static"):
            gain = ours / row["figures"][way]["median"]
            assert f"{gain:.1f}" in told, (name, way)
