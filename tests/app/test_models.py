"""The model's loading thread."""

import subprocess
import sys

from app.models import Backend, ModelHolder, Tell
from core.errors import ModelError
from tests.app.fakes import FakeBackend


def test_the_model_is_loaded_once_and_then_ready() -> None:
    calls = []

    def load(tell: Tell) -> Backend:
        calls.append(1)
        tell("load")
        return FakeBackend()

    holder = ModelHolder(load)
    assert holder.status.state == "idle"
    holder.start()
    holder.start()
    assert holder.wait(20).state == "ready"
    assert holder.backend is not None and calls == [1]


def test_a_model_that_fails_leaves_one_sentence() -> None:
    def refuse(tell: Tell) -> Backend:
        raise ModelError("model_no_default")

    def burst(tell: Tell) -> Backend:
        raise OSError("disk gone\nmore")

    for load, code in ((refuse, "model_no_default"), (burst, "model_load")):
        holder = ModelHolder(load)
        holder.start()
        status = holder.wait(20)
        assert status.state == "failed" and status.fault is not None
        assert status.fault.code == code and "\n" not in status.fault.sentence()
        assert holder.backend is None


def test_the_page_loads_no_torch() -> None:
    script = (
        "import sys, app.explore, app.shown; app.shown.recorded_names();"
        "bad = {'torch', 'transformers'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
