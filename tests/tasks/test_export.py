"""`task=export`: plans of a finished run as configs of the trainers that can say them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asap_ray.interchange.exchange import plan_of
from asap_ray.interchange.projects import read_job
from asap_ray.ledger import NAME
from asap_ray.plan import Plan
from tests.problems import make_problem


@pytest.fixture
def tuned(command) -> str:
    ended = command("+model=tiny", "hardware=h100x4", "stack=megatron", "run_dir=run", "output=json")
    assert ended.status == 0, ended.err
    return json.loads(ended.out)["best"]["line"]


def test_the_best_plan_is_written_again(command, tuned: str) -> None:
    before = {path.name: path.read_text() for path in Path("run/plans").iterdir()}
    assert set(before) == {"best.megatron.args", "best.jax.py"}
    for path in Path("run/plans").iterdir():
        path.unlink()
    ended = command("task=export", "run_dir=run", "output=json")
    found = json.loads(ended.out)
    assert (found["plan"], set(found["written"])) == (tuned, {"megatron", "jax"})
    assert {path.name: path.read_text() for path in Path("run/plans").iterdir()} == before


def test_the_best_plan_is_that_of_the_run_although_a_plan_was_explained_there_since(command, tuned: str) -> None:
    job = ("+model=tiny", "hardware=h100x4", "stack=megatron", "run_dir=run")
    assert command("task=explain", *job, "plan=data=4 micro_batch=8 accumulation=1 remat=full").status == 0
    ended = command("task=export", "run_dir=run", "output=json")
    assert (ended.status, json.loads(ended.out)["plan"]) == (0, tuned)


def test_another_plan_is_written_for_one_trainer(command, tuned: str) -> None:
    line = "data=2 tensor=2 micro_batch=4 accumulation=4 zero=1 remat=full"
    ended = command("task=export", "run_dir=run", f"plan={line}", "to=megatron", "output=plain")
    assert ended.status == 0, ended.err
    assert ended.out.startswith(f"{line}:\n  megatron  ")
    file = Path("run/plans/given.megatron.args")
    assert str(file.absolute()) in ended.out
    job = read_job("baseline", file)
    assert job is not None
    assert plan_of(job, make_problem("h100x4", "megatron", "tiny", 32, 128)) == Plan.parse(line)
    assert " s by " not in file.read_text()  # nothing is known of how fast it is
    assert (Path("run/plans/best.megatron.args")).exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run_dir=run", "to=maxtext"], "to=maxtext: plans of stack=megatron can be written as megatron, jax"),
        (
            ["run_dir=run", "plan=fsdp=4 micro_batch=1 accumulation=8 remat=full"],
            "a plan that is legal in this run, but",
        ),
        (["run_dir=run", "plan=tensr=2"], "did you mean tensor?"),
        (["run_dir=empty"], f"a directory with a run in it, its {NAME}, in which a slice is priced"),
        ([], "run_dir=null: for task=export, the directory of a run"),
        (["run_dir=run", "+model=tiny"], "+model=tiny: not for task=export: it writes what is in run_dir"),
    ],
)
def test_a_mistake_is_one_line(command, tuned: str, words: list[str], told: str) -> None:
    Path("empty").mkdir()
    ended = command("task=export", *words)
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert told in ended.err


def test_to_is_for_export_alone(command) -> None:
    ended = command("+model=tiny", "to=maxtext")
    assert "to=maxtext: for task=export" in ended.err
