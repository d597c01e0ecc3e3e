"""The bar: on a terminal, for work that takes a while, and nowhere else."""

from __future__ import annotations

import io

import pytest

from asap_ray.report.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_how_far_it_is_and_then_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with progress("pricing [bold]v5p-128", stream) as told:
        assert told is not None
        told(0.42)
    shown = stream.getvalue()
    assert "pricing [bold]v5p-128" in shown, "a name is not markup"
    assert " 42%" in shown
    assert shown.endswith(("\x1b[1A\x1b[2K", "\x1b[2K")), "the line is wiped at the end"


@pytest.mark.parametrize(
    ("stream", "wanted", "term"),
    [(io.StringIO(), True, "xterm"), (Terminal(), False, "xterm"), (Terminal(), True, "dumb")],
)
def test_there_is_none_elsewhere(stream: io.StringIO, wanted: bool, term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    with progress("pricing", stream, wanted=wanted) as told:
        assert told is None
    assert stream.getvalue() == ""


def test_no_color_asks_for_no_escape_code_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    with progress("pricing", stream) as told:
        assert told is None
    assert stream.getvalue() == ""


def test_an_error_inside_leaves_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with pytest.raises(RuntimeError, match="inside"), progress("pricing", stream):
        raise RuntimeError("inside")
    assert stream.getvalue().endswith("\x1b[2K")
