"""A stub for the report's page, which takes longest of all and has tests of its own."""

from __future__ import annotations

import pytest

from asap_ray.report import files


@pytest.fixture
def drawn_page() -> None:
    """Ask for this where the page itself is under test."""


@pytest.fixture(autouse=True)
def undrawn_page(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "drawn_page" not in request.fixturenames:
        monkeypatch.setattr(files, "page", lambda answer: f"<!doctype html><title>{answer.model}</title></html>\n")
