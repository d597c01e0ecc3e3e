"""Known vulnerabilities of what is installed, by pip-audit: one fails the run, unless it is listed with a reason.

pip-audit asks PyPI's page of each version. Where only an index of files can be reached it finds no such page and says
that nothing is known; this tells that apart from a clean result, in words, and does not fail the run for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

IGNORED: Mapping[str, str] = {}
"""Vulnerabilities by their ids, each with the reason why it does no harm here."""
PROBED = "numpy"
PAGE = "https://pypi.org/pypi/{}/{}/json"
PATIENCE_S = 120
UNREACHED = "pip-audit: the vulnerability service cannot be reached from here, so nothing was audited"


def main() -> int:
    """Run the command; returns the exit status."""
    try:
        urllib.request.urlopen(PAGE.format(PROBED, version(PROBED)), timeout=10).close()
    except (OSError, urllib.error.URLError) as error:
        print(f"{UNREACHED} ({error})")
        return 0
    ignored = [word for name in IGNORED for word in ("--ignore-vuln", name)]
    argv = [sys.executable, "-m", "pip_audit", "--progress-spinner=off", "--skip-editable", "--format=json", *ignored]
    try:
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S)
        found = json.loads(ended.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError) as error:
        print(f"{UNREACHED} ({type(error).__name__})")
        return 0
    status, text = verdict(found)
    print(text)
    return status


def verdict(found: list[Mapping[str, Any]]) -> tuple[int, str]:
    """The status and the words that a report comes to."""
    bad = [f"{each['name']} {each['version']}: {one['id']}" for each in found for one in each.get("vulns", ())]
    audited = sum("vulns" in each for each in found)
    if bad:
        return 1, f"pip-audit: {len(bad)} known vulnerabilities\n" + "\n".join(bad)
    if audited < len(found) / 2:
        return 0, f"{UNREACHED}: {len(found) - audited} of {len(found)} packages have no page there"
    return 0, f"pip-audit: nothing known against {audited} of {len(found)} packages"


if __name__ == "__main__":
    sys.exit(main())
