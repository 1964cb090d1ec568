"""What this machine is called, for everything that says on what it was measured."""

import os
import platform
from pathlib import Path

__all__ = ["processor_name"]


def processor_name() -> str:
    """The processor's name and its cores; Linux hides the name in a file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"
