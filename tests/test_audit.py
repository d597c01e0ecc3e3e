"""What CI says of the audit of packages: a finding fails, and a service that cannot be asked is no clean result."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    path = Path(__file__).parents[1] / ".ci" / "audit.py"
    spec = importlib.util.spec_from_file_location("audit", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_vulnerability_fails_with_its_name(audit: ModuleType) -> None:
    found = [{"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1"}]}, {"name": "b", "version": "2", "vulns": []}]
    assert audit.verdict(found) == (1, "pip-audit: 1 known vulnerabilities\na 1: PYSEC-1")


def test_pages_that_are_not_there_are_no_clean_result(audit: ModuleType) -> None:
    skipped = [{"name": name, "skip_reason": "not found on PyPI"} for name in "abc"]
    status, text = audit.verdict([*skipped, {"name": "d", "version": "1", "vulns": []}])
    assert status == 0
    assert "nothing was audited: 3 of 4 packages have no page there" in text


def test_a_clean_result_says_of_how_many(audit: ModuleType) -> None:
    found = [{"name": name, "version": "1", "vulns": []} for name in "abc"]
    found.append({"name": "asap-ray", "skip_reason": "not found on PyPI"})
    assert audit.verdict(found) == (0, "pip-audit: nothing known against 3 of 4 packages")
