"""The house stands as drawn: arrows point up, pure packages stay pure, files stay readable."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "servekit"
HEAVY = {"torch", "triton", "transformers", "litestar", "zmq"}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "output": set(),
    "layout": set(),
    "config": {"errors"},
    "spec": {"config"},
    "scheduler": {"config", "spec"},
    "workload": {"config"},
    "simulator": {"spec", "scheduler", "workload", "config", "output", "layout"},
    "planner": {"spec", "simulator", "scheduler", "workload", "config", "output", "layout"},
    "telemetry": {"config"},
    "kernels": set(),
    "model": {"spec", "kernels", "config"},
    "engine": {"scheduler", "model", "kernels", "telemetry", "spec", "config"},
    "server": {"engine", "telemetry", "planner", "scheduler", "model", "spec", "config"},
}
"""What each package may import besides itself and `errors`; `cli` may import any."""

PURE = ["errors", "config", "spec", "scheduler", "workload", "simulator", "planner", "telemetry"]
MAY_DEFER = {("planner.catalogue.models", "model"), ("planner.catalogue.files", "model")}
"""Imports inside a function that cross an arrow: `servekit models fetch` needs `model.sources`, and
the cache knows where it keeps a file."""


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imports_of(path: Path) -> list[tuple[str, bool]]:
    """Dotted names that a module imports, and whether at its top level."""
    tree = ast.parse(path.read_text())
    found = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found += [(name, node in tree.body) for name in names]
    return found


@pytest.mark.parametrize("path", modules(), ids=module_name)
def test_arrows_point_only_to_packages_above(path: Path) -> None:
    package = module_name(path).split(".")[0]
    if package == "cli":
        return
    assert package in MAY_IMPORT, f"{package} is not in the table of packages"
    for name, _ in imports_of(path):
        if not name.startswith("servekit.") or name.startswith("servekit.__version__"):
            continue
        target = name.split(".")[1]
        allowed = MAY_IMPORT[package] | {package, "errors"}
        if (module_name(path), target) in MAY_DEFER:
            continue
        assert target in allowed, f"{module_name(path)} imports {name}"


@pytest.mark.parametrize("package", PURE)
def test_a_pure_package_imports_nothing_heavy(package: str) -> None:
    names = [
        f"servekit.{module_name(path)}"
        for path in modules()
        if module_name(path).split(".")[0] == package
    ]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert child.stdout.strip() == "[]"


def test_importing_the_package_loads_nothing_but_itself_and_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import servekit; "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert child.stdout.strip() == "['servekit']"


def test_a_heavy_import_at_the_top_of_the_command_line_is_not_there() -> None:
    names = {name.split(".")[0] for name, top in imports_of(PACKAGE / "cli.py") if top}
    assert not names & (HEAVY | {"hydra", "pydantic", "omegaconf"})


@pytest.mark.parametrize("path", modules(), ids=module_name)
def test_files_and_functions_stay_short(path: Path) -> None:
    source = path.read_text()
    assert source.count("\n") <= 300, "split this file"
    # a kernel is one computation, and its many arguments stand one a line where it is launched
    most = 90 if path.parent.name == "kernels" else 42
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= most, f"{node.name} has {length} lines"
