"""`task=export`: write a plan of a run, the best or another one, as configs of the trainers that can say it.

With `export.what=trajectories` it writes what was decided in runs, to learn from (`tasks.trajectories`).
"""

from __future__ import annotations

from collections.abc import Mapping

from asap_ray.config import Config
from asap_ray.errors import ConfigError
from asap_ray.interchange.projects import Writer, writers_of
from asap_ray.ledger import NAME, Ledger
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.report.outline import Block
from asap_ray.rules import broken
from asap_ray.stack import stack_from_mapping
from asap_ray.tasks import record, trajectories
from asap_ray.tasks.plans import FOLDER, header, preset_of, write_configs
from asap_ray.tasks.running import tell, write_files


def run(config: Config) -> int:
    """Run the task; returns the exit status.

    Raises:
        ConfigError: the directory holds no run with a plan, the plan is not legal there, or a trainer cannot say it.
    """
    if config.export.what == "trajectories":
        return trajectories.run(config)
    problem, best = _of_run(config)
    estimate, name = best, "best"
    plan = best.plan if best else None
    if config.plan is not None:
        plan, estimate, name = Plan.parse(config.plan, "plan"), None, "given"
        if (rule := broken(problem, plan)) is not None:
            raise ConfigError("plan", config.plan, f"a plan that is legal in this run, but: {rule[1]}")
        if best is not None and plan == best.plan:
            estimate = best
    if plan is None:
        raise ConfigError("run_dir", config.run_path, "a run in which a plan fits, or a plan of your own: plan=…")
    preset, found, facts = preset_of(problem.workload.architecture, config.config_dir), {}, []
    for to, writer in _writers(config, problem.stack.name).items():
        written = writer(problem, plan, preset)
        head = header(config.run_path, problem, plan, estimate, written)
        paths = write_files(
            config, lambda each=written, head=head: write_configs(each, head, config.run_path / FOLDER, name)
        )
        facts += [(to, str(path)) for path in paths]
        facts += [(to, f"not said: {knob}: {why}") for knob, why in written.cannot.items()]
        found[to] = {"files": [str(path) for path in paths], "cannot": dict(written.cannot)}
    fields = {"task": config.task, "run_dir": str(config.run_path), "plan": plan.line, "written": found}
    tell(config, fields, [Block(title=plan.line, facts=tuple(facts))])
    return 0


def _writers(config: Config, stack: str) -> Mapping[str, Writer]:
    known = writers_of(stack)
    for name in config.to or ():
        if name not in known:
            raise ConfigError("to", name, f"plans of stack={stack} can be written as {', '.join(known)}", known)
    return {name: known[name] for name in config.to or known}


def _of_run(config: Config) -> tuple[Problem, Estimate | None]:
    """What the last run of a directory worked on, and the best plan that it has found, if it has one."""
    wanted = f"a directory with a run in it, its {NAME}"
    try:
        last = record.last_job(list(Ledger(config.run_path).events()))
    except (OSError, ValueError) as error:
        raise ConfigError("run_dir", config.run_path, f"{wanted}, but: {error}") from error
    if not any(event["kind"] == "swept" for event in last):
        raise ConfigError("run_dir", config.run_path, f"{wanted}, in which a slice is priced")
    answer = record.answer_so_far(last, config.run_path)
    stack = stack_from_mapping(last[0]["config"]["stack"])
    return Problem(workload=answer.workload, slice=answer.winner.slice, stack=stack), answer.winner.best
