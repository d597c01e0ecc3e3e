"""The layers of the design hold: imports go down only, pure layers stay pure, and start-up stays light."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from docs.hooks.layers import read_layers

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "asap_ray"
MODULES = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}

LAYERS = read_layers((TESTS.parent / "docs" / "architecture.md").read_text(encoding="utf-8"))
LAYER_OF = {name: layer.name for layer in LAYERS for name in layer.modules}
ALLOWED = {layer.name: {layer.name, *layer.imports} for layer in LAYERS} | {"unknown": {layer.name for layer in LAYERS}}
PURE = {"errors", "values", "space", "physics"}

# fmt: off
IMPURE = {
    "os", "io", "pathlib", "time", "datetime", "random", "secrets", "socket", "subprocess", "shutil",
    "tempfile", "glob", "threading", "multiprocessing", "concurrent", "asyncio", "logging", "sys", "ray",
    "jax", "jaxlib", "flax", "hydra", "omegaconf", "openai", "optuna", "rich", "yaml", "requests",
}
# fmt: on
ONLY_IN = {
    "jax": ("fitting.timed_kernels", "compiler.", "trainer.", "training.", "profile.xplane", "agents.learning"),
    "jaxlib": ("compiler.", "trainer.", "profile.xplane", "agents.learning"),
    "flax": ("trainer.", "agents.learning"),
    "ray": ("executor.ray_",),
    "openai": ("agents.llm",),
    "httpx2": ("agents.llm",),
    "hydra": ("overrides",),
    "xprof": ("profile.xprof",),
    "omegaconf": ("overrides", "settings", "__main__"),
}


def layer_of(module: str) -> str:
    return LAYER_OF.get(module) or LAYER_OF.get(module.split(".")[0], "unknown")


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All that a file says."""
    return list(ast.walk(ast.parse(path.read_text())))


def imported(module: str) -> Iterator[str]:
    """Full names that a module imports anywhere in it, function bodies included."""
    for node in nodes(MODULES[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively; write the full name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def own(module: str) -> set[str]:
    """Modules of the package that a module imports, relative to it (`physics.memory`)."""
    found = set()
    for name in imported(module):
        parts = name.split(".")
        if parts[0] == "asap_ray":
            tails = (".".join(parts[1:end]) for end in (len(parts), len(parts) - 1))
            candidates = (each for tail in tails for each in (tail, f"{tail}.__init__".lstrip(".")))
            found.add(next((each for each in candidates if each in MODULES), ".".join(parts[1:-1])))
    return found - {module}


def test_every_module_has_one_layer_on_the_page_and_every_one_there_exists() -> None:
    assert {name for name in MODULES if layer_of(name) == "unknown"} == set()
    named = [name for layer in LAYERS for name in layer.modules]
    assert sorted(named) == sorted(set(named))
    tops = {part for name in MODULES for part in (name, name.split(".")[0])}
    assert set(named) - tops == set()
    assert all(layer.modules for layer in LAYERS)


def test_every_arrow_of_the_page_is_an_import() -> None:
    real = {(layer_of(module), layer_of(name)) for module in MODULES for name in own(module)}
    assert {(layer.name, other) for layer in LAYERS for other in layer.imports} == {(a, b) for a, b in real if a != b}


def test_layers_have_no_cycle() -> None:
    assert list(graphlib.TopologicalSorter({layer.name: layer.imports for layer in LAYERS}).static_order())


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_down_only(module: str) -> None:
    upward = {name for name in own(module) if layer_of(name) not in ALLOWED[layer_of(module)]}
    assert upward == set()


@cache
def defined(module: str) -> set[str]:
    """Names that a module defines at its top, those it only imports left out."""
    found: set[str] = set()
    for node in ast.parse(MODULES[module].read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return found


@pytest.mark.parametrize("path", [*sorted(PACKAGE.rglob("*.py")), *sorted(TESTS.rglob("*.py"))], ids=lambda p: p.name)
def test_names_are_imported_from_the_module_that_defines_them(path: Path) -> None:
    elsewhere: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "asap_ray":
            base = node.module.removeprefix("asap_ray").removeprefix(".")
            package = f"{base}.__init__".lstrip(".")
            for name in (alias.name for alias in node.names):
                home = base if base in MODULES else package
                if f"{base}.{name}".lstrip(".") not in MODULES and name not in defined(home):
                    elsewhere.add(f"{node.module}.{name}")
    assert elsewhere == set()


def test_no_module_imports_itself_through_others() -> None:
    graph = {module: own(module) for module in MODULES}
    assert list(graphlib.TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("module", sorted(name for name in MODULES if layer_of(name) in PURE))
def test_pure_layers_touch_nothing_outside(module: str) -> None:
    roots = {name.split(".")[0] for name in imported(module)}
    calls = {
        node.func.id
        for node in nodes(MODULES[module])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert roots & IMPURE == set()
    assert calls & {"open", "print", "input", "exec", "eval"} == set()


@pytest.mark.parametrize("package", sorted(ONLY_IN))
def test_heavy_packages_are_imported_in_their_place_only(package: str) -> None:
    users = {module for module in MODULES if package in {name.split(".")[0] for name in imported(module)}}
    assert {module for module in users if not module.startswith(ONLY_IN[package])} == set()


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_the_package_loads_nothing_but_itself() -> None:
    code = "import sys; before = set(sys.modules); import asap_ray; print(sorted(set(sys.modules) - before))"
    assert run_python(code) == "['asap_ray']\n"


# The modules that a start may load, Python's own included; NumPy alone would bring about 100 more. Time to start is
# mostly their number: tests/benchmarks has the seconds.
@pytest.mark.parametrize(
    ("argv", "most"), [(["--help"], 250), (["+model=lama70b"], 360), (["--cfg", "job", "+model=tiny"], 380)]
)
def test_a_start_loads_few_modules_and_nothing_heavy(argv: list[str], most: int) -> None:
    code = f"""
import sys
from asap_ray.__main__ import main
main({argv})
print("\\nloaded:", *sys.modules)
"""
    loaded = set(run_python(code).splitlines()[-1].split()[1:])
    heavy = {"ray", "jax", "flax", "optuna", "openai", "altair", "pandas", "pyarrow", "scipy", "torch", "vl_convert"}
    assert loaded & (heavy | {"numpy", "networkx", "pydantic", "jinja2"}) == set()
    assert {name for name in loaded if name.startswith("asap_ray.tasks")} == set()
    assert len(loaded) < most
