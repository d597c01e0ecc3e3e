"""`task=export export.what=trajectories`: the decisions of finished runs as steps of state, action and reward.

One step is one move that somebody asked for: what was known then (the workload, the slice, the best trial so far with
its diagnosis, shares and memory), the move from that trial's plan, and what it was worth (`agents.reward`). A proposal
that was refused is a step too, worth nothing. The steps are written three times, under `trajectories/`: one JSON object
a line, as Parquet, and as chats for fine-tuning a language model, each with its reward.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from asap_ray.agents.facts import facts_of_result
from asap_ray.agents.reward import reward
from asap_ray.config import Config
from asap_ray.drafts import write_whole
from asap_ray.errors import ConfigError, shown
from asap_ray.ledger import NAME, Ledger
from asap_ray.plan import FIELDS, Plan
from asap_ray.problem import Problem
from asap_ray.report.answer import Tried
from asap_ray.report.outline import Block
from asap_ray.search.protocol import Candidate, Result, best_of
from asap_ray.stack import stack_from_mapping
from asap_ray.tasks import record
from asap_ray.tasks.loop import result_of
from asap_ray.tasks.running import tell, write_files

FOLDER = "trajectories"
Event = Mapping[str, Any]
LONGEST = 400
"""Characters of a text at most: what an agent has said is data."""
SYSTEM = (
    "You tune how a training step is spread over accelerators. You are given the workload, the slice, and what was "
    "found of the best plan so far. Answer with one JSON object: the plan to try next, in one line, and why."
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One move: `state` is what was known, `action` what was asked for, `status` and `step_s` what came of it, and
    `reward` what that is worth."""

    run: str
    slice: str
    trial: int | None
    state: Mapping[str, Any]
    action: Mapping[str, Any]
    status: str
    step_s: float | None
    best_s: float | None
    reason: str
    reward: float

    @property
    def chat(self) -> dict[str, Any]:
        """The step as messages, what is asked and what was answered, with its reward beside them."""
        answer = {name: self.action[name] for name in ("plan", "hypothesis", "mechanism") if self.action.get(name)}
        told = ((SYSTEM, "system"), (_line(self.state), "user"), (_line(answer), "assistant"))
        messages = [{"role": role, "content": text} for text, role in told]
        return {"messages": messages, "reward": self.reward, "status": self.status}


def run(config: Config) -> int:
    """Run the task; returns the exit status.

    Raises:
        ConfigError: the directory holds no run with a trial.
    """
    ledgers = ledgers_in(config.run_path)
    steps = [each for ledger in ledgers for each in steps_of(ledger)]
    if not steps:
        allowed = f"a directory with runs in it, their {NAME}, in which a plan was tried"
        raise ConfigError("run_dir", config.run_path, allowed)
    try:
        paths = write_files(config, lambda: _write(steps, config.run_path / FOLDER))
    except (TypeError, ValueError) as error:  # a run of another version, whose figures are of other kinds
        if isinstance(error, ConfigError):
            raise
        allowed = f"a directory of runs that this version has written ({shown(error)})"
        raise ConfigError("run_dir", config.run_path, allowed) from error
    worth = sum(each.reward for each in steps) / len(steps)
    fields = {"task": config.task, "run_dir": str(config.run_path), "steps": len(steps), "mean_reward": worth}
    told = [("steps", f"{len(steps):,} of {len(ledgers)} runs, worth {worth:.2f} on average")]
    told += [("written", str(path)) for path in paths]
    tell(config, {**fields, "written": [str(path) for path in paths]}, [Block(title=FOLDER, facts=tuple(told))])
    return 0


def ledgers_in(folder: Path) -> list[Ledger]:
    """The ledgers of a folder and of all run directories below it, as below that of a night, by their names."""
    return [Ledger(path.parent) for path in sorted(folder.rglob(NAME))]


def steps_of(ledger: Ledger) -> list[Step]:
    """The steps of the last run that a ledger holds; none where nothing was priced.

    Raises:
        ConfigError: the ledger cannot be read.
    """
    events = list(ledger.events())
    with ledger.understood():
        last = record.last_job(events)
        found = [
            each
            for problem, where in problems_of(last, ledger.path.parent)
            for each in _Walk(problem, where, ledger.path.parent.name).steps(last)
        ]
    return found


def problems_of(run: Sequence[Event], run_dir: Path) -> list[tuple[Problem, str]]:
    """What a run worked on: a problem for each slice that was priced, with the slice's name."""
    if not any(event["kind"] == "swept" for event in run):
        return []
    answer, stack = record.answer_so_far(run, run_dir), stack_from_mapping(run[0]["config"]["stack"])
    return [
        (Problem(workload=answer.workload, slice=each.slice, stack=stack), each.slice.name) for each in answer.slices
    ]


@dataclass
class _Walk:
    """Goes through the events of a run on one slice, and knows at each what was known then."""

    problem: Problem
    where: str
    run: str
    results: list[Result] = field(default_factory=list)
    asked: dict[int, tuple[Result | None, int, Event]] = field(default_factory=dict)
    """For each trial: the best trial when it was asked for, how many there were, and the event that says why."""

    def steps(self, events: Iterable[Event]) -> Iterator[Step]:
        """The steps, in the order in which they ended."""
        said = [event for event in events if event.get("slice") == self.where]
        no_ops = {event["trial"] for event in said if event["kind"] == "verdict" and event["status"] == "no-op"}
        for event in said:
            if event["kind"] in ("proposal", "sample", "trial"):
                self.asked.setdefault(event["trial"], (best_of(self.results), len(self.results), event))
            elif event["kind"] == "refusal":
                yield self._refused(event)
            elif event["kind"] == "tried" and "trial" in event:
                yield self._ended(record.read_tried(event), event["trial"] in no_ops)

    def _refused(self, event: Event) -> Step:
        best = best_of(self.results)
        action = self._action(event, Plan.parse(event["plan"]), best)
        reason = event["reason"]
        return self._step(None, best, len(self.results), action, status="refused", reason=reason, worth=0.0)

    def _ended(self, tried: Tried, no_op: bool) -> Step:
        candidate = Candidate(number=tried.number, plan=tried.roofline.plan, author=tried.author)
        result = result_of(candidate, tried)
        best, count, why = self.asked.get(tried.number, (best_of(self.results), len(self.results), {}))
        action = {**self._action(why, candidate.plan, best), "author": tried.author, "bundle": tried.bundle}
        same = no_op or (best is not None and best.digest == result.digest != "")
        step, best_s = result.step_time_s, best.step_time_s if best else None
        worth = reward(result.status, step, best_s, no_op=same)
        self.results.append(result)
        return self._step(
            tried.number, best, count, action, status=result.status, step_s=step, reason=result.reason, worth=worth
        )

    def _step(
        self, trial: int | None, best: Result | None, count: int, action: Mapping[str, Any], *, status: str,
        reason: str, worth: float, step_s: float | None = None,
    ) -> Step:  # fmt: skip
        return Step(
            run=self.run,
            slice=self.where,
            trial=trial,
            state=_state(self.problem, best, count),
            action=action,
            status=status,
            step_s=step_s,
            best_s=best.step_time_s if best else None,
            reason=shown(reason, LONGEST) if reason else "",
            reward=worth,
        )

    def _action(self, event: Event, plan: Plan, best: Result | None) -> dict[str, Any]:
        """The move: the plan, what it changes of the best trial's, and what was said for it."""
        said = {name: shown(event[name], LONGEST) for name in ("hypothesis", "mechanism", "card") if event.get(name)}
        said |= {"prediction": event["prediction"]} if event.get("prediction") else {}
        move = moved(best.candidate.plan, plan) if best else {}
        return {"plan": plan.line, "move": move, "author": event.get("author", ""), **said}


def moved(before: Plan, after: Plan) -> dict[str, list[Any]]:
    """What a move changes: for each axis and knob that differs, what it was and what it becomes."""
    pairs = {name: [_value(before, name), _value(after, name)] for name in FIELDS}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _value(plan: Plan, name: str) -> Any:
    return plan.axes[name] if name in plan.axes else getattr(plan, name)


def _state(problem: Problem, best: Result | None, count: int) -> dict[str, Any]:
    """What was known: the job, where it runs, and the facts of the best trial by then."""
    job, slice_ = problem.workload, problem.slice
    return {
        "workload": {
            "model": job.architecture.name,
            "parameters": job.architecture.parameters,
            "layers": job.architecture.layers,
            "global_batch": job.global_batch,
            "seq_len": job.seq_len,
            "precision": job.precision,
        },
        "slice": {"name": slice_.name, "chip": slice_.chip.name, "devices": slice_.devices, "slices": slice_.slices},
        "stack": problem.stack.name,
        "trials": count,
        "best": None
        if best is None
        else {"plan": best.candidate.plan.line, "step_s": best.step_time_s, "facts": facts_of_result(problem, best)},
    }


def _line(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, allow_nan=False)


def _write(steps: Sequence[Step], folder: Path) -> list[Path]:
    """The steps in three forms.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = [asdict(each) for each in steps]
    texts = {"steps.jsonl": rows, "chat.jsonl": [each.chat for each in steps]}
    paths = [write_whole(folder / name, "".join(f"{_line(each)}\n" for each in lines)) for name, lines in texts.items()]
    flat = [{**row, "state": _line(row["state"]), "action": _line(row["action"])} for row in rows]
    pq.write_table(pa.Table.from_pylist(flat), folder / "steps.parquet")
    return [*paths, folder / "steps.parquet"]
