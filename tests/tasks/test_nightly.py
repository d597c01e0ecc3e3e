"""`task=nightly`: two small cells night after night, with a compiler that only pretends: what each night begins with,
what it says of the others, and how it ends."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest

from asap_ray.__main__ import main
from asap_ray.plan import Plan
from asap_ray.tasks import tune
from asap_ray.tasks.night import running
from tests.tasks.pretend import Pretend

MATRIX = """
about: two small cells
workloads: {tiny: [+model=tiny]}
slices: [v5e-4, v5e-8]
stacks: [maxtext]
words: ["tiers=[roofline,compile]", budget.compile=7]
"""
NIGHT = ("task=nightly", "nightly=two", "config_dir=mine", "run_dir=run", "output=json")
LAST = 7


class Cluster:
    """Stands for the processes of cells: they run in this one. `ends` are statuses that come before, by cell."""

    def __init__(self) -> None:
        self.ends: dict[str, list[int | type[BaseException] | None]] = {}
        self.words: list[list[str]] = []

    def study(self, argv: Sequence[str], log: Path, limit_s: float, stop: Any) -> int | None:
        assert argv[:3] == [sys.executable, "-m", "asap_ray"]
        words = list(argv[3:])
        self.words.append(words)
        planned = self.ends.get(log.parent.name)
        if planned:
            end = planned.pop(0)
            if isinstance(end, type):
                raise end
            return end
        with log.open("w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            return main(words)

    def said(self, place: int, key: str) -> str:
        return next(word.partition("=")[2] for word in self.words[place] if word.startswith(f"{key}="))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: Any, pretend: type[Pretend]) -> Cluster:
    (tmp_path / "mine" / "nightly").mkdir(parents=True)
    (tmp_path / "mine" / "nightly" / "two.yaml").write_text(MATRIX)
    made = Cluster()
    monkeypatch.setattr(running, "study", made.study)
    return made


@pytest.fixture
def night(command: Callable[..., Any], cluster: Cluster) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Run one night; gives its status and what it printed."""

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        told = command(*NIGHT, *words)
        assert told.status in (0, 2, 3), told.err
        return told.status, json.loads(told.out)

    return run


class Compiler:
    """What plans come to: a tenth more than the roofline says; but the last one that the first night tries on each
    slice is three times as fast. `scale` is of all of them, `lost` are plans that do not fit any more."""

    def __init__(self, pretend: type[Pretend], monkeypatch: pytest.MonkeyPatch) -> None:
        self.pretend, self.seen, self.fast, self.scale = pretend, list[str](), set[str](), 1.0
        self.lost = False
        monkeypatch.setattr(pretend, "verdict", staticmethod(self.verdict))

    def verdict(self, plan: Plan, flags: Mapping[str, str]) -> Mapping[str, Any]:
        if plan.line not in self.seen:
            self.seen.append(plan.line)
            if len(self.seen) % LAST == 0:
                self.fast.add(plan.line)
        if plan.line in self.fast and self.lost:
            return {"status": "infeasible", "over_bytes": 2e9, "reason": "RESOURCE_EXHAUSTED"}
        return {"step": self.scale * (0.4 if plan.line in self.fast else 1.1)}

    def next_night(self) -> None:
        self.pretend.cache.clear()


@pytest.fixture
def compiler(pretend: type[Pretend], monkeypatch: pytest.MonkeyPatch) -> Compiler:
    return Compiler(pretend, monkeypatch)


def test_nights_begin_with_what_was_found_before_and_catch_a_planted_regression_with_its_cause(
    night: Any, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, drawn_page: None
) -> None:
    status, first = night()
    assert (status, first["counts"]["new"]) == (0, 2)
    assert [each["trials_to_best"] for each in first["cells"]] == [LAST, LAST]
    compiler.next_night()
    status, second = night()
    assert (status, second["counts"]["unchanged"]) == (0, 2)
    assert second["night"] > first["night"]
    # The first round holds the plan that the memory has; the ranking alone took seven trials to come to it.
    assert all(each["trials_to_best"] <= 3 for each in second["cells"])
    assert [each["plan"] for each in second["cells"]] == [each["plan"] for each in first["cells"]]

    compiler.next_night()
    compiler.scale = 1.3
    was = tune.versions
    monkeypatch.setattr(tune, "versions", lambda **given: {**was(**given), "libtpu": "0.0.99"})
    status, third = night()
    assert (status, third["counts"]["regressed"]) == (2, 2)
    for cell in third["cells"]:
        assert (cell["cause"], cell["against"]) == ("versions", second["night"])
        assert cell["ratio"] == pytest.approx(1.3)
        assert cell["why"][0].startswith("the same plan took ")
        assert "(+30.0%)" in cell["why"][0]
        assert "-> 0.0.99" in cell["why"][1]
    page = Path(third["folder"], "night.html").read_text()
    assert "Regressed" in page
    assert second["night"] in page

    query = "select verdict, count(*), max(ratio) from 'run/history.parquet' group by verdict order by verdict"
    new, regressed, unchanged = duckdb.sql(query).fetchall()
    assert (new[:2], unchanged[:2]) == (("new", 2), ("unchanged", 2))
    assert regressed == ("regressed", 2, pytest.approx(1.3))


def test_a_plan_that_does_not_fit_any_more_is_named_as_the_reason(night: Any, compiler: Compiler) -> None:
    night()
    compiler.next_night()
    compiler.lost = True
    status, found = night()
    assert status == 2
    assert {each["cause"] for each in found["cells"]} == {"memory"}
    assert "does not run tonight: infeasible, RESOURCE_EXHAUSTED" in found["cells"][0]["why"][0]


def test_lost_cells_are_run_again_and_a_mistake_is_not(night: Any, cluster: Cluster, compiler: Compiler) -> None:
    cluster.ends = {"tiny-v5e-4-maxtext": [-9], "tiny-v5e-8-maxtext": [None, None]}
    status, found = night()
    (kept, lost) = found["cells"]
    assert (status, kept["verdict"], kept["attempts"]) == (3, "new", 2)
    assert (lost["verdict"], lost["attempts"], lost["reason"]) == ("failed", 2, "it left nothing")
    cluster.words.clear()
    cluster.ends = {}
    matrix = Path("mine/nightly/two.yaml")
    matrix.write_text(matrix.read_text().replace("budget.compile=7", "budget.compile=0"))
    status, found = night()
    assert (status, len(cluster.words)) == (3, 2)
    assert found["cells"][0]["reason"].startswith("budget.compile=0: ")
    # What had no answer comes first.
    assert cluster.said(0, "hardware") == "v5e-8"


def test_time_and_chip_hours_are_shared_by_what_is_left(
    night: Any, cluster: Cluster, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    night("budget.minutes=10", "budget.chip_hours=4")
    assert float(cluster.said(0, "budget.minutes")) == pytest.approx(5, abs=0.1)
    assert float(cluster.said(1, "budget.minutes")) == pytest.approx(10, abs=1)  # the first took seconds
    assert [cluster.said(place, "budget.chip_hours") for place in (0, 1)] == ["2", "4"]
    status, found = night("budget.minutes=0.01")
    assert status == 3
    assert found["cells"][0]["reason"] == "no time was left for it: budget.minutes"


def test_a_night_that_was_cut_short_is_taken_up_where_it_was(
    night: Any, command: Any, cluster: Cluster, compiler: Compiler
) -> None:
    cluster.ends = {"tiny-v5e-8-maxtext": [KeyboardInterrupt]}
    assert command(*NIGHT).status == 130
    begun = [json.loads(line) for line in Path("run/events.jsonl").read_text().splitlines()]
    (name,) = {each["night"] for each in begun if each["kind"] == "night"}
    cluster.words.clear()
    status, found = night("budget.minutes=10")
    assert (status, found["night"], found["counts"]["new"]) == (0, name, 2)
    assert len(cluster.words) == 1  # the other cell had its answer
    assert float(cluster.said(0, "budget.minutes")) == pytest.approx(10, abs=1)  # and leaves all that is left to this
    assert command("task=show", "run_dir=run").out.count("finished at") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nightly=three",), "nightly=three: a matrix of conf/nightly/: "),
        ((), "nightly=null: the name of a matrix"),
        (("nightly=two", "hardware=v5p-8"), "hardware=v5p-8: said by the matrix"),
        (("nightly=two", "+model=tiny"), "+model=tiny: not for task=nightly"),
        (("nightly=two", "nightly.tolerance=2"), "nightly.tolerance=2.0: a share above 0"),
        (("nightly=two", "nightly.parallel=100000"), "nightly.parallel=100000: a whole number from 1 to 64"),
        (
            ("nightly=two", "nightly.webhook_hosts=example.com"),
            "nightly.webhook_hosts=example.com: with ASAP_RAY_WEBHOOK",
        ),
    ],
)
def test_what_cannot_be_a_night_is_one_line(command: Any, cluster: Cluster, words: tuple[str, ...], said: str) -> None:
    told = command("task=nightly", "config_dir=mine", "run_dir=run", *words)
    assert told.status == 1
    assert said in told.err
    assert told.err.count("\n") == 1


def test_keys_of_a_night_need_one(command: Any) -> None:
    assert "nightly=small: only with task=nightly" in command("+model=tiny", "nightly=small").err
