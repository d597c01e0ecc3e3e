"""The wheel alone is enough: installed elsewhere, beside nothing but what it requires, it does the main job."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent


class Environment(NamedTuple):
    """A virtual environment with its own site-packages and nothing of the one that runs the tests."""

    python: Path
    packages: Path

    def run(self, cwd: Path, *argv: str | Path) -> subprocess.CompletedProcess[str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST", "COV"))}
        return subprocess.run([self.python, *argv], capture_output=True, text=True, cwd=cwd, env=clean)


def required(requirements: Iterable[str]) -> dict[str, Distribution]:
    """The installed distributions that requirements ask for, and those that these require in turn, by name."""
    found: dict[str, Distribution] = {}
    waiting, seen = [(Requirement(text), frozenset[str]()) for text in requirements], set[tuple[str, str]]()
    while waiting:
        requirement, extras = waiting.pop()
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras or ("",)):
            continue
        name = canonicalize_name(requirement.name)
        dist = found.setdefault(name, distribution(name))
        assert requirement.specifier.contains(dist.version, prereleases=True), f"{requirement}: {dist.version} is here"
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += [(Requirement(text), frozenset({extra})) for text in dist.requires or ()]
    return found


def pieces(dist: Distribution) -> Iterator[Path]:
    """Files of a distribution in site-packages, relative to it; its scripts, which lie elsewhere, left out."""
    assert dist.files, f"{dist.name} does not say what it installed"
    yield from (Path(file) for file in dist.files if file.parts[0] not in ("..", "__pycache__"))


@pytest.fixture(scope="module")
def shared() -> set[str]:
    """Folders that several installed distributions put files into, as namespace packages do."""
    owners = Counter(top for dist in distributions() if dist.files for top in {path.parts[0] for path in pieces(dist)})
    return {top for top, count in owners.items() if count > 1}


def environment(folder: Path, requirements: Iterable[str], shared: set[str]) -> Environment:
    """A new environment in which only what is required can be imported: links to the files of those distributions.

    It is what an installer would make of the versions at hand, without the minutes and the network that takes.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, capture_output=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for dist in required(requirements).values():
        links = {path if path.parts[0] in shared else Path(path.parts[0]) for path in pieces(dist)}
        for link in links:
            (packages / link).parent.mkdir(parents=True, exist_ok=True)
            (packages / link).symlink_to(Path(str(dist.locate_file(link))))
    return Environment(folder / "bin" / "python", packages)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, shared: set[str]) -> Path:
    """The wheel, built as every installer does: by the declared backend, beside the declared requirements only."""
    system = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    builder = environment(tmp_path_factory.mktemp("builder"), system["requires"], shared)
    dist = tmp_path_factory.mktemp("dist")
    built = builder.run(ROOT, "-B", "-c", f"import {system['build-backend']} as b; b.build_wheel({str(dist)!r})")
    assert built.returncode == 0, built.stderr
    return next(dist.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory, shared: set[str]) -> Environment:
    """An environment that holds the wheel and what its metadata requires; pip refuses if anything of that is missing.

    A dependency that is used and not declared is not there, even though the environment of the tests has it.
    """
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().split("\n\n")[0].splitlines()
    requires = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    assert requires
    user = environment(tmp_path_factory.mktemp("user"), requires, shared)
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", user.python]
    for words in (["install", "--no-index", wheel], ["check"]):
        ended = subprocess.run([*pip, *words], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    return user


def test_the_wheel_holds_every_setting_and_card(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    ours = {path for top in ("conf", "knowledge") for path in (ROOT / top).rglob("*") if path.is_file()}
    assert {f"asap_ray/{path.relative_to(ROOT)}" for path in ours} <= held
    assert {f"asap_ray/launch/files/{path.name}" for path in (ROOT / "launch").iterdir()} <= held
    templates = {path for path in (ROOT / "asap_ray").rglob("*") if path.suffix in (".py", ".html", ".j2", ".css")}
    assert {str(path.relative_to(ROOT)) for path in templates} <= held
    assert not any(name.startswith(("tests/", "conf/")) for name in held)


def test_whatever_is_imported_is_declared_itself_and_not_only_by_others() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [distribution(Requirement(text).name) for text in project["dependencies"]]
    offered = {path.parts[0].removesuffix(".py") for dist in declared for path in pieces(dist)}
    names: set[str] = set()
    for path in (ROOT / "asap_ray").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.split(".")[0])
    # xprof is an extra, looked for only where a trace is explained.
    assert names - offered - set(sys.stdlib_module_names) == {"asap_ray", "xprof"}


def test_the_tests_own_tools_are_not_in_reach(installed: Environment, tmp_path: Path) -> None:
    code = (
        "import importlib.util as u; print([n for n in ('pytest', 'hypothesis', 'hatchling', 'pip') if u.find_spec(n)])"
    )
    assert installed.run(tmp_path, "-c", code).stdout == "[]\n"


def test_every_module_can_be_imported_from_anywhere(installed: Environment, tmp_path: Path) -> None:
    code = """
import importlib, pkgutil, asap_ray
print(asap_ray.__file__)
for module in pkgutil.walk_packages(asap_ray.__path__, "asap_ray."):
    if module.name != "asap_ray.__main__":
        importlib.import_module(module.name)
"""
    ended = installed.run(tmp_path, "-W", "error", "-c", code)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"{installed.packages / 'asap_ray' / '__init__.py'}\n", "it is not the checkout that answers"


def test_help_lists_models_from_anywhere(installed: Environment, tmp_path: Path) -> None:
    ended = installed.run(tmp_path, installed.python.with_name("asap-ray"), "--help")
    assert ended.returncode == 0, ended.stderr
    assert "llama70b" in ended.stdout


def test_the_main_job_runs_from_anywhere(installed: Environment, tmp_path: Path) -> None:
    ended = installed.run(tmp_path, "-W", "error", "-m", "asap_ray", "+model=llama70b", "tiers=roofline", "output=json")
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert (summary["task"], summary["model"], summary["hardware"]) == ("tune", "llama70b", "v5p-128")
    assert summary["best"]["step_time_s"] > summary["best"]["floor_s"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_what_is_installed_ships_itself_as_the_wheel_that_it_came_from(
    installed: Environment, wheel: Path, tmp_path: Path
) -> None:
    words = ("task=launch", "launch.target=ray_job", "+model=tiny", "run_dir=run", "output=json")
    ended = installed.run(tmp_path, "-W", "error", "-m", "asap_ray", *words)
    assert ended.returncode == 0, ended.stderr
    made = tmp_path / "run" / "launch" / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(made) as new:
        (record,) = (name for name in old.namelist() if name.endswith("/RECORD"))
        assert sorted(new.namelist()) == sorted(old.namelist())
        assert all(new.read(name) == old.read(name) for name in old.namelist() if name != record)
        assert sorted(new.read(record).splitlines()) == sorted(old.read(record).splitlines())
