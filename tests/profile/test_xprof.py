"""XProf's tools, by a package that stands in for them: the real one is optional and not installed where tests run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from asap_ray.profile import xprof

STAND_IN = """
import json, pathlib, sys

def xspace_to_tool_data(paths, tool, params):
    pathlib.Path(paths[0]).with_name("cache.pb").write_bytes(b"")
    print("chatter", file=sys.stderr)
    pages = {
        "overview_page": [{"p": {"mxu_utilization_percent": "41.5%", "hbm_utilization_percent": "0.0%"}}, {"cols": []}],
        "roofline_model": [
            {
                "cols": [{"id": "bound_by"}, {"id": "roofline_efficiency"}],
                "rows": [{"c": [{"v": "HBM"}, {"v": 0.42}]}],
            }
        ],
        "memory_profile": {
            "memoryProfilePerAllocator": {"hbm": {"profileSummary": {"peakStats": {"peakBytesInUse": "12000000000"}}}}
        },
    }
    return json.dumps(pages[tool]).encode(), "application/json"
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "site" / "xprof" / "convert"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    (package / "raw_to_tool_data.py").write_text(STAND_IN)
    root = Path(xprof.__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{package.parents[1]}:{root}")
    monkeypatch.setattr(sys, "path", [str(package.parents[1]), *sys.path])
    return package


def test_what_its_tools_say_is_told_and_nothing_is_left_beside_the_trace(installed: Path, tmp_path: Path) -> None:
    file = tmp_path / "taken" / "host0.xplane.pb"
    file.parent.mkdir()
    file.write_bytes(b"x")
    assert xprof.says([file]) == {
        "MXU use": "41.5%",
        "roofline": "bound by HBM, at 0.42 of it",
        "peak of allocator hbm": "12 GB",
    }
    assert [each.name for each in file.parent.iterdir()] == ["host0.xplane.pb"]


def test_tools_that_fail_say_nothing(installed: Path, tmp_path: Path) -> None:
    (installed / "raw_to_tool_data.py").write_text("import os\nos.abort()\n")
    assert xprof.says([tmp_path / "host0.xplane.pb"]) is None


def test_without_the_package_nothing_is_said(tmp_path: Path) -> None:
    assert xprof.says([tmp_path / "host0.xplane.pb"]) is None
