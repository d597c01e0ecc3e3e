"""`task=explain`: take one plan apart, the one given with `plan=` or the best of the space.

A plan line may be partial: what it names is pinned, and what it leaves out takes its best.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

from asap_ray.config import Config
from asap_ray.diagnosis import diagnose
from asap_ray.drafts import write_whole
from asap_ray.errors import ConfigError
from asap_ray.ledger import Ledger
from asap_ray.physics.estimate import Estimate
from asap_ray.report.explanation import Explanation, blocks, closing, explanation_fields
from asap_ray.report.live import live
from asap_ray.report.outline import heading
from asap_ray.report.terminal import announce, print_blocks
from asap_ray.space import Space
from asap_ray.tasks import record
from asap_ray.tasks.baseline import tell_baseline
from asap_ray.tasks.nothing import explain_nothing
from asap_ray.tasks.recorder import Recorder
from asap_ray.tasks.running import (
    command_line,
    open_run,
    output_of,
    swept,
    takes_a_while,
    versions,
    write_files,
)
from asap_ray.tasks.setting import Setting, load
from asap_ray.tasks.written import baseline_of, written_plan
from asap_ray.tiers.neighbours import neighbours
from asap_ray.tiers.roofline import Roofline

if TYPE_CHECKING:
    from asap_ray.tasks.trial_tiers import TrialTiers


def run(config: Config) -> int:
    """Run the task; returns the exit status.

    Raises:
        AsapError: something for the user to change.
    """
    started = time.monotonic()
    if config.profile is not None and not config.model:
        from asap_ray.tasks import traced  # what reads traces is loaded only where there is one

        return traced.run(config)
    if len(config.hardware.slices) > 1:
        raise ConfigError("hardware", config.hardware.slices, "one slice: task=explain takes one plan apart")
    setting = load(config)
    tier, space = setting.tiers[0], setting.spaces[0]
    compiling = _compilers(config, setting)
    baseline = baseline_of(config, tier)
    output, stream = output_of(config)
    # As in task=tune: the heading of a large space comes first, else nothing is printed before all has gone well.
    early = takes_a_while(space)
    if early:
        announce(config.model_name, setting.workload, setting.slices, output, stream)
    told = _explanation(config, setting, baseline, started)
    ledger = open_run(config)
    record.started(ledger, config, setting.workload, command_line(), versions())
    record.narrowed(ledger, space.narrowings)
    tell_baseline(setting.foreign, baseline, ledger, output, stream)
    priced = [heading(config.model_name, setting.workload, setting.slices)] if not early else []
    priced += blocks(told)
    if compiling is not None:  # what the roofline says need not wait for a compiler
        if config.output != "json":
            print_blocks(priced, output, stream)
            priced = []
        told = _compiled(config, compiling, told, ledger, stream, started)
    if config.profile is not None:
        told = _traced(config, setting, told)
    fields = explanation_fields(told)
    ledger.append("explained", {"plan": told.estimate.plan.line, **fields})
    text, path = json.dumps(fields, indent=2, allow_nan=False) + "\n", config.run_path / "explanation.json"
    write_files(config, lambda: write_whole(path, text))
    if config.output == "json":  # one line, as task=tune: the jobs of a sweep are one object a line
        sys.stdout.write(json.dumps(fields, allow_nan=False) + "\n")
    else:
        print_blocks([*priced, *closing(told, str(path))], output, sys.stdout)
    return 0


def _compilers(config: Config, setting: Setting) -> TrialTiers | None:
    if not config.compiles:
        return None
    from asap_ray.tasks.compiling import compilers  # compilers are looked up only where one is asked for

    return compilers(config, setting)


def _compiled(
    config: Config, compiling: TrialTiers, told: Explanation, ledger: Ledger, stream: TextIO, started: float
) -> Explanation:
    """The explanation with what a compiler says of the plan, and what its program shows."""
    from asap_ray.tasks.compiling import compile_one
    from asap_ray.tasks.trial_tiers import observed, without_profile

    with live(stream, sys.stderr, 1, compiling.base) as shown:
        tried = compile_one(config, compiling, told.slice.name, told.estimate, Recorder(ledger, shown))
    return replace(
        told,
        tried=without_profile(tried),
        observed=observed(compiling, tried),
        wall_s=time.monotonic() - started,
        versions=versions(compiling=True),
    )


def _traced(config: Config, setting: Setting, told: Explanation) -> Explanation:
    """The explanation with the trace that was taken when the plan was run."""
    from asap_ray.tasks import traced

    found = traced.read(config, told.estimate.plan, setting.workload)
    seen = traced.observed(found, setting.tiers[0].problem, told.estimate)
    return replace(told, traced=found, traced_observed=seen, versions=versions(compiling=True))


def _explanation(config: Config, setting: Setting, baseline: Estimate | None, started: float) -> Explanation:
    tier, space = setting.tiers[0], setting.spaces[0]
    chosen, estimate = choose(config, tier, space)
    steps = neighbours(tier, Space(problem=tier.problem), estimate.plan)
    return Explanation(
        model=config.model_name,
        stack=config.stack_name,
        seed=config.seed,
        workload=setting.workload,
        slice=tier.problem.slice,
        chosen=chosen,
        estimate=estimate,
        diagnosis=diagnose(estimate),
        baseline=baseline,
        steps=tuple(steps),
        wall_s=time.monotonic() - started,
        versions=versions(),
    )


def choose(config: Config, tier: Roofline, space: Space) -> tuple[str, Estimate]:
    """The plan to explain, with a few words on how it was chosen.

    Raises:
        ConfigError: the plan given is not legal.
        DoesNotFitError: no plan was given and none fits.
    """
    if config.plan is None:
        sweep = swept(tier, space, top=1)
        if not sweep.ranked:
            raise explain_nothing(config, tier, space, sweep)
        return "The best plan", sweep.ranked[0]
    whole, estimate = written_plan(config, tier, space, config.plan, "plan")
    return "The given plan" if whole else "The best plan with what was given", estimate
