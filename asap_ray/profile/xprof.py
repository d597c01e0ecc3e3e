"""What XProf's own tools say of a trace, where the package `xprof` is installed (`pip install 'asap-ray[xprof]'`).

They run in a process of their own over links in a folder of their own: they write caches beside the files they read,
talk on stderr, and are compiled code that a broken file can bring down. Whatever goes wrong, nothing is said.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TIMEOUT_S = 300.0
USES = {
    "device_duty_cycle_percent": "duty cycle",
    "mxu_utilization_percent": "MXU use",
    "hbm_utilization_percent": "HBM use",
    "flop_rate_utilization_relative_to_roofline": "FLOP rate of the roofline",
    "memory_bw_utilization_relative_to_hw_limit": "HBM bandwidth of the limit",
}
"""Figures of the overview page, and what they are called here."""


def says(files: Sequence[Path]) -> dict[str, str] | None:
    """What overview, roofline and memory tools say, in words; None where `xprof` is not installed or says nothing."""
    if find_spec("xprof") is None:
        return None
    with tempfile.TemporaryDirectory(prefix="asap-xprof-") as folder:
        links = []
        for number, file in enumerate(files):
            link = Path(folder) / f"{number}-{file.name.removesuffix('.xplane.pb')}.xplane.pb"
            link.symlink_to(file.absolute())
            links.append(str(link))
        try:
            done = subprocess.run(
                [sys.executable, "-m", __name__, *links], capture_output=True, timeout=TIMEOUT_S, check=True, text=True
            )
            return json.loads(done.stdout.splitlines()[-1]) or None
        except (OSError, subprocess.SubprocessError, ValueError, IndexError):
            return None


def main(files: Sequence[str]) -> None:
    """Ask the tools, and print what they say as one line of JSON."""
    from xprof.convert.raw_to_tool_data import xspace_to_tool_data  # pyright: ignore[reportMissingImports]

    def ask(tool: str, of: Sequence[str] = files) -> Any:
        answer, _ = xspace_to_tool_data(list(of), tool, {})
        return json.loads(answer) if answer else None

    found = dict(_uses(ask("overview_page"))) | dict(_roofline(ask("roofline_model")))
    print(json.dumps(found | dict(_memory(ask("memory_profile", files[:1])))))


def _uses(page: Any) -> Iterator[tuple[str, str]]:
    properties: dict[str, Any] = {}
    for table in page or ():
        properties = {**table.get("p", {}), **properties}
    for key, name in USES.items():
        value = str(properties.get(key, ""))
        if value.strip("0.% "):
            yield name, value


def _roofline(page: Any) -> Iterator[tuple[str, str]]:
    """What the whole program is bound by, and how near its roofline it is: the first row of its table."""
    for table in page or ():
        columns = [column["id"] for column in table.get("cols", ())]
        for row in table.get("rows", ()):
            values: Mapping[str, Any] = dict(zip(columns, (cell.get("v") for cell in row["c"]), strict=False))
            if values.get("bound_by") not in (None, "", "Unknown"):
                yield "roofline", f"bound by {values['bound_by']}, at {values.get('roofline_efficiency', '?')} of it"
                return


def _memory(page: Any) -> Iterator[tuple[str, str]]:
    for name, profile in (page or {}).get("memoryProfilePerAllocator", {}).items():
        peak = float(profile.get("profileSummary", {}).get("peakStats", {}).get("peakBytesInUse", 0))
        if peak:
            yield f"peak of allocator {name}", f"{peak / 1e9:.3g} GB"


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main(sys.argv[1:])
