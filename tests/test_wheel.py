"""The wheel alone is enough: installed elsewhere, with no checkout in reach, it does the main job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as `python -m build --wheel` builds it."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel installs, third parties aside."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", folder, wheel],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return folder


def run_installed(installed: Path, cwd: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run the installed package as a user would, from `cwd`, and prove that it is not the checkout that answers."""
    code = (
        "import runpy, sys, asap_ray\n"
        f"assert asap_ray.__file__.startswith({str(installed)!r}), asap_ray.__file__\n"
        "runpy.run_module('asap_ray', run_name='__main__', alter_sys=True)"
    )
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST", "COV"))}
    return subprocess.run(
        [sys.executable, "-c", code, *argv],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=clean | {"PYTHONPATH": str(installed)},
        timeout=120,
    )


def test_the_wheel_holds_every_setting_and_card(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    ours = {path for top in ("conf", "knowledge") for path in (ROOT / top).rglob("*") if path.is_file()}
    assert {f"asap_ray/{path.relative_to(ROOT)}" for path in ours} <= held
    templates = {path for path in (ROOT / "asap_ray").rglob("*") if path.suffix in (".py", ".html", ".j2", ".css")}
    assert {str(path.relative_to(ROOT)) for path in templates} <= held
    assert not any(name.startswith(("tests/", "conf/")) for name in held)


def test_help_lists_models_from_anywhere(installed: Path, tmp_path: Path) -> None:
    ended = run_installed(installed, tmp_path, "--help")
    assert ended.returncode == 0, ended.stderr
    assert "llama70b" in ended.stdout


def test_the_main_job_runs_from_anywhere(installed: Path, tmp_path: Path) -> None:
    ended = run_installed(installed, tmp_path, "+model=llama70b", "output=json")
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert (summary["task"], summary["model"], summary["hardware"]) == ("tune", "llama70b", "v5p-128")
    assert summary["best"]["step_time_s"] > summary["best"]["floor_s"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
