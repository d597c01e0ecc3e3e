"""What the tests of tasks share: no page is drawn unless asked for, and a compiler that only pretends."""

from __future__ import annotations

import contextlib

import pytest

from asap_ray.executor import local
from asap_ray.physics.calibration import calibration_of
from asap_ray.report import files
from asap_ray.tasks import compiling, measuring
from tests.tasks.pretend import Pretend, PretendRun, at_once


@pytest.fixture
def drawn_page() -> None:
    """Ask for this where the page itself is under test."""


@pytest.fixture(autouse=True)
def undrawn_page(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "drawn_page" not in request.fixturenames:
        monkeypatch.setattr(files, "page", lambda answer: f"<!doctype html><title>{answer.model}</title></html>\n")


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> type[Pretend]:
    """A compile tier and an executor that compile nothing."""
    monkeypatch.setattr(local, "stream", at_once)
    here = local.Local(workers=2)
    monkeypatch.setattr(compiling, "executor_of", lambda config, workers: contextlib.nullcontext(here))
    fresh = type("Fresh", (Pretend,), {"cache": {}, "compiled": []})
    monkeypatch.setattr(compiling, "Compile", fresh)
    # Constants of the stack that tests name, so that what the compiler says is a known multiple of the roofline.
    monkeypatch.setattr(compiling, "calibration_of", lambda chip, _, known: calibration_of(chip, "maxtext", known))
    return fresh


@pytest.fixture
def pretend_run(pretend: type[Pretend], monkeypatch: pytest.MonkeyPatch) -> type[PretendRun]:
    """A run tier that runs nothing, on slices that are not there, beside the compiler that compiles nothing."""
    fresh = type("FreshRun", (PretendRun,), {"ran": []})
    monkeypatch.setattr(measuring, "Run", fresh)
    monkeypatch.setattr(measuring, "_check_reached", lambda config, where: None)
    monkeypatch.setattr(measuring, "calibration_of", lambda chip, _, known: calibration_of(chip, "maxtext", known))
    return fresh
