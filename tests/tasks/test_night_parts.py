"""Parts of a night: its matrix, its lock, verdicts by worked values, processes of cells, and what others are told."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from asap_ray.errors import ConfigError
from asap_ray.overrides import configure
from asap_ray.report.night import Judged, Night, Row
from asap_ray.settings import load_group
from asap_ray.tasks.night import lock, webhook
from asap_ray.tasks.night.history import Kept, kept, name_of
from asap_ray.tasks.night.lock import night_lock
from asap_ray.tasks.night.matrix import _disturbed, cells_from_mapping
from asap_ray.tasks.night.running import study
from asap_ray.tasks.night.settings import settings_of
from asap_ray.tasks.night.sharing import Purse, Share, side_by_side
from asap_ray.tasks.night.verdicts import judged, slower
from asap_ray.tasks.setting import load_chips

GOOD = {"workloads": {"a": ["+model=tiny"]}, "slices": ["v5e-4", "v5e-8"], "stacks": ["maxtext", "ours"]}


def test_cells_are_all_combinations_but_those_left_out() -> None:
    cells = cells_from_mapping("m", {**GOOD, "words": ["x=1"], "leave_out": [{"slice": "v5e-8", "stack": "ours"}]})
    assert [each.name for each in cells] == ["a-v5e-4-maxtext", "a-v5e-4-ours", "a-v5e-8-maxtext"]
    assert cells[0].words == ("+model=tiny", "hardware=v5e-4", "stack=maxtext", "x=1")


@pytest.mark.parametrize(
    ("shared", "further", "told"),
    [
        ([], ["ray.address=auto", "seed=1"], ["ray.address=auto", "seed=1"]),
        (["tiers=roofline"], ["ray.address=auto", "seed=1"], ["seed=1"]),
        (
            ["tiers=roofline"],
            ["tiers=[roofline,run]", "ray.address=auto"],
            ["tiers=[roofline,run]", "ray.address=auto"],
        ),
    ],
)
def test_cells_without_trials_are_not_told_where_ray_is(shared: list, further: list, told: list) -> None:
    (cell, *_) = cells_from_mapping("m", {**GOOD, "words": shared}, tuple(further))
    assert list(cell.words[3 + len(shared) :]) == told


@pytest.mark.parametrize("name", load_group("nightly"))
def test_every_matrix_that_is_carried_has_cells(name: str) -> None:
    assert cells_from_mapping(name, load_group("nightly")[name])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"slice": ["v5e-4"]}, "did you mean slices?"),
        ({"slices": []}, "nightly.m.slices=[]: a list of texts"),
        ({"workloads": ["tiny"]}, "nightly.m.workloads="),
        ({"workloads": {"a": "tiny"}}, "nightly.m.workloads.a=tiny: a list of texts"),
        ({"leave_out": [{"chip": "v5e"}]}, "nightly.m.leave_out="),
        ({"leave_out": [{"workload": "a"}]}, "less than all cells"),
        ({"leave_out": 3}, "nightly.m.leave_out=3: mappings with any of"),
        ({"workloads": {"a b": ["+model=tiny"], "a_b": ["+model=tiny"]}}, "nightly.m=a_b-v5e-4-maxtext: workloads,"),
        ({"workloads": {"a" * 250: ["+model=tiny"]}}, "names that are 200 bytes long together"),
    ],
)
def test_a_matrix_that_is_none_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cells_from_mapping("m", {**GOOD, **change})
    assert said in str(caught.value)


# Worked: 1.00 s with [0.98, 1.02] against 1.05 s. By a clock with [1.00, 1.10] they overlap; with [1.03, 1.07] they do
# not. Compiled steps differ where they do so by more than the tolerance.
@pytest.mark.parametrize(
    ("step", "low", "high", "measured", "expected"),
    [
        (1.05, 1.00, 1.10, True, False),
        (1.05, 1.03, 1.07, True, True),
        (1.05, 0.5, 2.0, False, True),
        (1.009, 1.009, 1.009, False, False),
    ],
)
def test_noise_is_no_regression(step: float, low: float, high: float, measured: bool, expected: bool) -> None:
    assert slower((step, low, high), (1.0, 0.98, 1.02), 0.01, measured=measured) is expected


ROW = Row(
    night="20261202T010000Z",
    cell="c",
    workload="a",
    slice="v5e-4",
    stack="maxtext",
    words=("compile.xla=async",),
    ok=True,
    plan="fsdp=4",
    source="compile",
    step_time_s=1.0,
    versions={"jax": "1"},
    parts={"matmul": 0.6, "fsdp": 0.4},
    trials=5,
    stopped="as many as wanted",
)
BEFORE = replace(ROW, night="20261201T010000Z")


def test_a_slow_drift_is_seen_against_the_fastest_of_the_last_nights() -> None:
    nights = [replace(BEFORE, night=f"2026110{day}T010000Z", step_time_s=1 + 0.009 * day) for day in range(1, 8)]
    found = judged(replace(ROW, step_time_s=1 + 0.009 * 8), nights, [], 0.01)
    assert (found.verdict, found.against) == ("regressed", "20261101T010000Z")
    forgotten = judged(replace(ROW, step_time_s=1.07), [replace(BEFORE, step_time_s=0.5), *nights], [], 0.01)
    assert forgotten.against == "20261101T010000Z"  # the eighth night back does not count


def test_a_plan_that_was_not_tried_again_is_the_searchs_fault() -> None:
    found = judged(replace(ROW, step_time_s=2.0, trials=2), [BEFORE], [], 0.01)
    assert (found.verdict, found.cause) == ("regressed", "search")
    assert found.why[0] == "the plan of 20261201T010000Z was not tried: 2 trials tonight, 5 then; as many as wanted"


def test_an_improvement_says_what_the_plan_has_otherwise_and_where_the_time_went() -> None:
    other = judged(replace(ROW, step_time_s=0.5, plan="fsdp=2 tensor=2"), [BEFORE], [], 0.01)
    assert (other.verdict, other.cause, other.ratio) == ("improved", "plan", 0.5)
    assert other.why[0] == "another plan: fsdp 4 -> 2, tensor 1 -> 2"
    words = judged(
        replace(ROW, step_time_s=0.7, words=("compile.xla=sync",), parts={"matmul": 0.6, "fsdp": 0.1}),
        [BEFORE],
        [],
        0.01,
    )
    assert words.cause == "flags"
    assert words.why[1:] == (
        "command: compile.xla=async -> compile.xla=sync",
        "fsdp: 400 ms -> 100 ms, 100% of the change",
    )


def test_steps_of_two_tiers_are_not_compared() -> None:
    found = judged(replace(ROW, source="roofline", step_time_s=9.0), [BEFORE], [], 0.01)
    assert (found.verdict, found.cause) == ("new", "evidence")


def test_two_nights_never_overlap(tmp_path: Path) -> None:
    with (
        night_lock(tmp_path),
        pytest.raises(ConfigError, match="in which no night goes on: process"),
        night_lock(tmp_path),
    ):
        raise AssertionError("unreachable")
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_who_is_gone_is_taken_over_and_that_of_another_machine_only_when_old(tmp_path: Path) -> None:
    path = tmp_path / lock.NAME
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    path.write_text(json.dumps({"host": socket.gethostname(), "pid": gone.pid, "token": "x"}))
    with night_lock(tmp_path):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    # A container that was started again has the host and the number of the one that was killed.
    path.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "token": "x"}))
    with night_lock(tmp_path):
        assert json.loads(path.read_text())["token"] != "x"
    path.write_text(json.dumps({"host": "another", "pid": 1, "token": "x"}))
    with pytest.raises(ConfigError, match="process 1 on another"), night_lock(tmp_path):
        raise AssertionError("unreachable")
    old = time.time() - lock.STALE_S - 60
    os.utime(path, (old, old))
    with night_lock(tmp_path, beat_s=0.01):
        os.utime(path, (old, old))
        limit = time.monotonic() + 60
        while path.stat().st_mtime == old and time.monotonic() < limit:  # its owner keeps it fresh
            time.sleep(0.01)
        assert path.stat().st_mtime > old


def test_of_two_that_see_a_stale_lock_the_slower_leaves_it_to_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, gone = tmp_path / lock.NAME, lock._gone
    old = time.time() - lock.STALE_S - 60
    path.write_text(json.dumps({"host": "another", "pid": 1, "token": "x"}))
    os.utime(path, (old, old))
    with ExitStack() as faster:

        def slow(*given: Any) -> bool:
            monkeypatch.setattr(lock, "_gone", gone)
            found = gone(*given)
            faster.enter_context(night_lock(tmp_path))
            return found

        monkeypatch.setattr(lock, "_gone", slow)
        with pytest.raises(ConfigError, match="another has just taken"), night_lock(tmp_path):
            raise AssertionError("unreachable")
        assert json.loads(path.read_text())["token"] in lock._HELD
    assert list(tmp_path.iterdir()) == []


def test_who_died_amid_a_takeover_is_followed_in_time(tmp_path: Path) -> None:
    path = tmp_path / lock.NAME
    old = time.time() - lock.STALE_S - 60
    path.write_text(json.dumps({"host": "another", "pid": 1, "token": "x"}))
    heir = lock._heir(path, path.read_bytes())
    heir.write_text("{}")
    os.utime(path, (old, old))
    with pytest.raises(ConfigError, match="another has just taken"), night_lock(tmp_path):
        raise AssertionError("unreachable")
    os.utime(heir, (old, old))
    with night_lock(tmp_path):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_a_night_of_half_a_day_ago_is_not_taken_up() -> None:
    from datetime import UTC, datetime

    found = kept([{"kind": "night", "night": "20261201T010000Z"}])
    assert name_of(datetime(2026, 12, 1, 12, tzinfo=UTC), found) == ("20261201T010000Z", True)
    assert name_of(datetime(2026, 12, 1, 14, tzinfo=UTC), found) == ("20261201T140000Z", False)
    same = Kept(rows=(), verdicts={}, open_night=None, names=frozenset({"20261201T140000Z"}))
    assert name_of(datetime(2026, 12, 1, 14, tzinfo=UTC), same) == ("20261201T140000Z-2", False)


@pytest.mark.parametrize(
    ("code", "limit_s", "status"), [("raise SystemExit(3)", 60, 3), ("while True: pass", 0.1, None)]
)
def test_a_study_ends_with_its_status_or_at_its_limit(tmp_path: Path, code: str, limit_s: float, status: Any) -> None:
    assert study([sys.executable, "-S", "-c", code], tmp_path / "log", limit_s, threading.Event()) == status


class Told(BaseHTTPRequestHandler):
    """Keeps what it is told; /elsewhere sends on to where nobody may be sent."""

    messages: list[dict[str, Any]] = []  # noqa: RUF012 (of the one server that a test has)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/elsewhere":
            self.send_response(307)
            self.send_header("Location", "/secret")
        else:
            self.messages.append(json.loads(body))
            self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...  # pyright: ignore[reportIncompatibleMethodOverride]


@pytest.fixture
def server() -> Iterator[str]:
    Told.messages.clear()
    with HTTPServer(("127.0.0.1", 0), Told) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()


def the_night() -> Night:
    row = replace(ROW, reason="token=abcdef123456", run_dir="/home/me/run", step_time_s=1.3)
    cell = Judged(row=row, verdict="regressed", cause="versions", why=("jax 1 -> 2",), before_s=1.0)
    return Night(name="n", matrix="m", cells=(cell,), wall_s=1.0, chip_hours=0.0, folder="/home/me/run/nights/n")


def test_the_webhook_is_told_counts_and_names_and_nothing_else(server: str) -> None:
    assert webhook.tell(f"{server}/secret-path", the_night()) == ""
    (told,) = Told.messages
    assert told["text"] == "asap_ray night n: 1 regressed"
    assert told["cells"] == [{"cell": "c", "verdict": "regressed", "cause": "versions", "ratio": 1.3}]
    assert not any(word in json.dumps(told) for word in ("token", "/home", "compile.xla"))


def test_the_webhook_goes_nowhere_else_and_what_went_wrong_does_not_name_it(server: str) -> None:
    assert webhook.tell(f"{server}/elsewhere", the_night()) == "the webhook answered 307"
    assert Told.messages == []
    said = webhook.tell("http://127.0.0.1:1/secret", the_night())
    assert said.startswith("the webhook cannot be reached")
    assert "secret" not in said


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("https://hooks.example.com/x", None),
        ("http://hooks.example.com/x", "https, or http of this machine"),
        ("https://other.example.com/x", "which is other.example.com"),
        ("https://me:pass@hooks.example.com/x", "with ASAP_RAY_WEBHOOK=https://HOST/PATH"),
        ("file:///etc/passwd", "with ASAP_RAY_WEBHOOK"),
        ("https://[", "with ASAP_RAY_WEBHOOK"),
    ],
)
def test_only_a_host_that_is_allowed_is_told(address: str, said: str | None) -> None:
    environ = {webhook.VARIABLE: address}
    if said is None:
        assert webhook.address_of(["hooks.example.com"], environ) == address
        assert webhook.address_of([], environ) is None
        return
    with pytest.raises(ConfigError) as caught:
        webhook.address_of(["hooks.example.com"], environ)
    assert said in str(caught.value)
    assert "pass" not in str(caught.value)


def test_a_purse_is_shared_by_what_is_neither_spent_nor_lent() -> None:
    # Two at a time of five: each of the first two has a third of the time, since three turns are to come.
    purse = Purse(minutes=30.0, chip_hours=10.0, parallel=2)
    first, second = purse.lend("a", 5), purse.lend("b", 4)
    assert (first.minutes, second.minutes) == (pytest.approx(10, abs=0.1), pytest.approx(15, abs=0.1))
    assert (first.chip_hours, second.chip_hours) == (2.0, 2.0)
    purse.paid("a", 0.5)  # the 1.5 that it left over are of the three that have not begun
    assert purse.lend("c", 3).chip_hours == pytest.approx((10 - 0.5 - 2) / 3)
    assert first.workers == max(1, (os.cpu_count() or 1) // 2)
    assert Purse(minutes=None, chip_hours=None).lend("a", 1) == Share()


def test_cells_run_side_by_side_and_no_more_than_so_many() -> None:
    cells = cells_from_mapping("m", GOOD)
    both, running, most = threading.Barrier(2), set[str](), list[int]()

    def work(cell: Any, share: Share, stop: threading.Event) -> str:
        running.add(cell.name)
        most.append(len(running))
        both.wait(60)  # never passed by one alone
        running.discard(cell.name)
        return cell.name

    left = list[int]()
    found = dict(side_by_side(cells, 2, lambda cell, count: left.append(count) or Share(), work))
    assert {each.name: value for each, value in found.items()} == {each.name: each.name for each in cells}
    assert (left, max(most)) == ([4, 3, 2, 1], 2)


def test_what_runs_beside_a_cell_that_breaks_is_ended() -> None:
    def work(cell: Any, share: Share, stop: threading.Event) -> None:
        if cell.slice == "v5e-4":
            raise OSError("disk full")
        assert stop.wait(60)

    with pytest.raises(OSError, match="disk full"):
        list(side_by_side(cells_from_mapping("m", {**GOOD, "stacks": ["ours"]}), 2, lambda *_: Share(), work))


@pytest.mark.parametrize(
    ("name", "old", "new", "cause", "said"),
    [
        ("xla/async", {"xla_a": "true"}, {"xla_a": "false"}, "flags", "xla/async has changed: xla_a true -> false"),
        ("stack/maxtext", {"zero": 0}, {}, "configuration", "stack/maxtext has changed: zero 0 -> none"),
    ],
)
def test_a_file_that_says_something_else_under_the_same_name_is_a_cause(
    name: str, old: dict[str, Any], new: dict[str, Any], cause: str, said: str
) -> None:
    before, now = replace(BEFORE, settings={name: old}), replace(ROW, step_time_s=0.5, settings={name: new})
    found = judged(now, [before], [], 0.01)
    assert (found.cause, found.why[1]) == (cause, said)
    other = judged(replace(now, versions={"jax": "2"}), [before], [], 0.01)
    assert other.cause == "versions"  # the first of several; all are told
    assert said in other.why


def test_what_a_step_depends_on_is_read_from_its_study_and_its_flags() -> None:
    chip = load_chips(configure(["task=validate"]))["v5e"]
    stack = {"name": "maxtext", "source": "somewhere", "zero": [0, 1], "overlap": {"fsdp": 0.5}}
    start = {"kind": "start", "config": {"stack": stack, "model": {"name": "tiny", "layers": 2}, "config_dir": None}}
    found = settings_of([start], chip, "async")
    assert found["stack/maxtext"] == {"zero": "[0, 1]", "overlap.fsdp": 0.5}
    assert found["model/tiny"] == {"layers": 2}
    assert found["xla/async"]["xla_enable_async_all_gather"] == "true"
    assert found["chip/v5e"]["hbm_bytes"] == chip.hbm_bytes


def test_cells_that_a_clock_times_run_side_by_side_on_a_cluster_alone() -> None:
    cells = cells_from_mapping("m", {**GOOD, "words": ["tiers=[roofline,run]"]})
    assert _disturbed(cells[0])
    joined = cells_from_mapping("m", {**GOOD, "words": ["tiers=[roofline,run]"]}, ("ray.address=10.0.0.1:6379",))
    assert not _disturbed(joined[0])
