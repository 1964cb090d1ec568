"""Who may import whom, what a fresh process loads, what each module says is public."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_PACKAGES = ("app", "core", "kernels", "lessons")
_MODULES = sorted(p for package in _PACKAGES for p in (_ROOT / package).rglob("*.py"))
_NO_TORCH = ("core.cache", "core.sched", "core.trace", "core.workload", "core.capacity", "lessons")

# package: what it may import of ours and of the heavy outside world
_ALLOWED: dict[str, set[str]] = {
    "kernels": {"kernels", "torch", "triton", "numba"},
    "core.exec": {"core", "kernels", "torch", "triton", "transformers"},
    "core": {"core"},
    "lessons": {"lessons", "core"},
    "app.figures": {"core.trace", "app.figures", "app.theme", "plotly", "core.text"},
    "app": {"app", "core", "lessons", "streamlit", "plotly"},
}
_WATCHED = (
    "app",
    "core",
    "kernels",
    "lessons",
    "torch",
    "triton",
    "numba",
    "transformers",
    "streamlit",
    "plotly",
)


def _name(path: Path) -> str:
    parts = path.relative_to(_ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _within(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


@pytest.mark.parametrize("path", _MODULES, ids=_name)
def test_a_module_imports_downwards_only(path: Path) -> None:
    name = _name(path)
    package = max((p for p in _ALLOWED if _within(name, {p})), key=len)
    for imported in _imports(path):
        if imported.split(".")[0] in _WATCHED:
            assert _within(imported, _ALLOWED[package]), f"{name} imports {imported}"


def test_only_the_engines_glue_reaches_into_exec() -> None:
    glue = {"core.engine", "core.sched.update"}  # and they take only what loads no torch
    simulator = {"core.exec.cost_model", "core.exec.sim_runner"}  # nor do these
    for path in _MODULES:
        name = _name(path)
        if not name.startswith("core.") or name.startswith("core.exec"):
            continue
        reached = {i for i in _imports(path) if i.startswith("core.exec")}
        if name.startswith("core.workload"):
            reached = {i for i in reached if not _within(i, simulator)}
        assert not reached or name in glue, f"{name} imports {reached}"


def test_views_read_traces_and_never_the_pool() -> None:
    for path in _MODULES:
        if _name(path).startswith(("app.figures", "app.player")):
            assert not any(i.startswith("core.cache") for i in _imports(path)), path


def test_a_fresh_process_loads_no_torch() -> None:
    modules = [n for n in map(_name, _MODULES) if _within(n, {*_NO_TORCH, "core.engine"})]
    assert len(modules) > 15
    heavy = "torch", "triton", "numba", "transformers", "streamlit", "plotly"
    code = (
        f"import importlib, sys\nfor m in {modules!r}: importlib.import_module(m)\n"
        f"print(sorted(set(sys.modules) & set({heavy!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


_LIGHT = [p for p in _MODULES if p.name != "__init__.py"]


@pytest.mark.parametrize("path", _LIGHT, ids=_name)
def test_public_names_are_listed_sorted_and_complete(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "a module says what it owns"
    listed: list[str] | None = None
    defined = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            listed = ast.literal_eval(node.value)
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            defined.add(node.name)
    if listed is None:
        assert not defined, f"{_name(path)} has no __all__"
        return
    assert len(listed) == len(set(listed))
    assert _is_sorted(listed), f"{_name(path)}: {listed}"
    assert defined <= set(listed), f"not listed: {defined - set(listed)}"
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | defined
    assert set(listed) <= names, f"not there: {set(listed) - names}"


def _is_sorted(names: list[str]) -> bool:
    """Constants, then classes, then functions, each by name, as ruff sorts them."""

    def rank(name: str) -> tuple[int, str]:
        return (0 if name.isupper() else 1 if name[0].isupper() else 2), name

    return names == sorted(names, key=rank)


def test_the_contract_modules_import_what_they_list() -> None:
    for name in ("core.engine", "core.trace.trace", "core.cache.manager", "core.sched.scheduler"):
        module = importlib.import_module(name)
        assert all(hasattr(module, public) for public in module.__all__)


_TEXT = {".py", ".toml", ".js", ".css", ".md", ".mjs", ".html", ".json", ""}
_FINE = re.compile(
    r"https?://(www\.w3\.org|json-schema\.org|localhost|127\.0\.0\.1|\{|arxiv\.org|docs\.vllm\.ai"
    r"|github\.com|huggingface\.co|www\.apache\.org|example\.(com|org))"
)
_SKIP = {".venv", ".git", "uv.lock", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}


def _tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files"], cwd=_ROOT, capture_output=True, text=True)
    if done.returncode:
        return [p for p in _ROOT.rglob("*") if not _SKIP & set(p.relative_to(_ROOT).parts)]
    return [_ROOT / name for name in done.stdout.splitlines()]


def test_no_file_holds_an_address_or_a_path_of_one_machine() -> None:
    paths = re.compile(r"(?<![\w.])/(work|root|home/\w+|Users/\w+)/\w")
    for path in _tracked():
        if path.suffix not in _TEXT or path.name in ("uv.lock", "LICENSE") or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            where = f"{path.relative_to(_ROOT)}:{number}"
            bare = _FINE.sub("", line)
            if path.name != "test_architecture.py":
                assert not re.search(r"https?://", bare), f"{where}: {line.strip()[:100]}"
                assert not paths.search(line), f"{where}: {line.strip()[:100]}"
