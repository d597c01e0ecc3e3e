"""`task=compare`: search methods against each other on measured tables, on planted faults, or on the user's own job.

Each ground is searched by each method with each seed: one Ray task for all seeds of a method on a ground. What is done
is in the ledger, and the same command again goes on from there. With `+model` trials go through the tiers of that
command (`comparing_own`).
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from asap_ray.agents.cascade import Cascade
from asap_ray.agents.llm import OPENAI, Endpoint, key_of
from asap_ray.agents.spending import Limits
from asap_ray.config import Config
from asap_ray.contest.ground import Ground
from asap_ray.contest.methods import ASKING, SLOW, TAUGHT, Means, Method, methods_named, seeds_of
from asap_ray.contest.play import Budget, Played, play_many
from asap_ray.errors import AsapError, ConfigError
from asap_ray.executor.protocol import Executor
from asap_ray.ledger import Ledger
from asap_ray.report.comparison import ComparisonAnswer
from asap_ray.report.progress import progress
from asap_ray.settings import data_dir
from asap_ray.tasks.compared import conclude
from asap_ray.tasks.planting import planted_grounds
from asap_ray.tasks.replays import replays
from asap_ray.tasks.running import begin, command_line, versions
from asap_ray.tasks.thinking import limits_of
from asap_ray.tasks.validate import carried_tables
from asap_ray.tiers.protocol import Job

PLAYED = "played"
SEEDS, TRIALS = 20, 100
"""Seeds of a method that a seed changes, and trials of one search, where none are given."""
SUBSET = 5
"""Of the grounds that slow methods are played on: one in so many of each source, the first of them always."""
SLOW_SEEDS = 3
"""Seeds with which slow methods are played at most."""


def run(config: Config) -> int:
    """Run the task; returns the exit status.

    Raises:
        AsapError: something for the user to change.
    """
    started = time.monotonic()
    if config.model:
        from asap_ray.tasks import comparing_own  # it knows compilers and trainers, which tables need not

        return comparing_own.run(config, started)
    methods = methods_named(tuple(config.compare.methods))
    grounds = grounds_of(config)
    means = means_of(config, methods, grounds)
    ledger = begin(config)
    budget = Budget(trials=config.compare.trials or TRIALS, width=config.search.proposals)
    played, resumed = all_played(config, ledger, grounds, methods, budget, means)
    answer = ComparisonAnswer(
        grounds=tuple(grounds),
        errors={each.name: each.field().error for each in grounds if each.kind == "replay"},
        methods=tuple(methods),
        played=tuple(played),
        budget=budget,
        seed=config.seed,
        resumed=resumed,
        command=command_line(),
        run_dir=config.run_path,
        wall_s=time.monotonic() - started,
        versions=versions(),
    )
    conclude(config, ledger, answer)
    return 0


def grounds_of(config: Config) -> list[Ground]:
    """What is searched.

    Raises:
        ConfigError: a table cannot be used, or nothing is left.
    """
    asked = config.compare
    found: list[Ground] = []
    if "replay" in asked.tasks:
        tables = asked.tables or carried_tables()
        found += replays(tables, asked.leave_out, config.space.margin, config.config_dir)
        if not found:
            raise ConfigError("compare.tables", tables, "tables with a workload of which 8 distinct plans ran")
    if "planted" in asked.tasks:
        found += planted_grounds(config)
    wanted: list[Ground] = [each for each in found if (asked.only or "") in each.name]
    if not wanted:
        names = [each.name for each in found]
        raise ConfigError("compare.only", asked.only, f"text in one of {len(names)} names, such as {names[0]}")
    return wanted


def all_played(
    config: Config,
    ledger: Ledger,
    grounds: Sequence[Ground],
    methods: Sequence[Method],
    budget: Budget,
    means: Means,
) -> tuple[list[Played], bool]:
    """Every search, and whether some were found in the ledger.

    Raises:
        AsapError: a job fails.
    """
    code = code_digest()
    rules = {"budget": asdict(budget), "code": code}
    known = _known(ledger, {each.name: each.digest for each in grounds}, rules)
    listed = [each for each in config.compare.methods if each not in ("auto", "all")]
    jobs = list(_jobs(config, grounds, methods, known, (budget, means), listed))
    wanted = {
        (ground.name, method.name, seed)
        for ground in grounds
        for method in methods
        for seed in _seeds(config, grounds, ground, method, listed)
    }
    found = [each for key, each in known.items() if key in wanted]
    resumed, digests = bool(found), {each.name: each.digest for each in grounds}
    with executor_for(config, len(jobs)) as executor, progress("comparing", sys.stderr) as told:
        waiting = iter(jobs)
        for done, outcome in enumerate(executor.stream(lambda: next(waiting, None)), start=1):
            if outcome.status != "complete":
                raise outcome.error or AsapError(f"{outcome.job.name} {outcome.status}: {outcome.reason}")
            name = outcome.job.arguments[0].name
            ledger.append(PLAYED, {"ground": name, "digest": digests[name], **rules, "searches": outcome.value})
            found += [Played.from_dict(each) for each in outcome.value]
            if told:
                told(done / len(jobs))
    return found, resumed


def means_of(config: Config, methods: Sequence[Method], grounds: Sequence[Ground]) -> Means:
    """What brains need, where a method does: who asks the language model, and policies that have not seen a ground.

    Raises:
        ConfigError: nothing says how to reach a model, or there is nothing to learn from.
    """
    names, policies = {each.name for each in methods}, {}
    if names & set(TAUGHT):
        from asap_ray.tasks.taught import policies_for

        policies = policies_for((each.source for each in grounds), config.compare.tables, config.seed)
    asker = partial(fresh_asker, limits_of(config)) if names & set(ASKING) else None
    return Means(asker=asker, policies=policies)


def fresh_asker(limits: Limits) -> Cascade:
    """Who asks the language model in one search, within its own limits; the key is in the environment alone."""
    url = limits.base_url or OPENAI
    return Cascade(limits=limits, wire=Endpoint(base_url=url, key=key_of(url), timeout_s=limits.timeout_s))


def executor_for(config: Config, jobs: int) -> AbstractContextManager[Executor]:
    """Ray for the jobs there are; it starts with the first."""
    from asap_ray.executor.ray_tasks import RayTasks

    return RayTasks(address=config.ray.address or "auto", workers=min(os.cpu_count() or 1, max(jobs, 1)))


def _jobs(
    config: Config,
    grounds: Sequence[Ground],
    methods: Sequence[Method],
    known: dict[tuple[str, str, int], Played],
    rules: tuple[Budget, Means],
    listed: Sequence[str],
) -> Iterator[Job]:
    """A job for each method on each ground with all seeds that are missing; of a planted ground one for all methods,
    since its plans take longer to make than to search."""
    budget, means = rules
    for ground in grounds:
        missing: dict[tuple[int, ...], list[str]] = {}
        for method in methods:
            seeds = _seeds(config, grounds, ground, method, listed)
            left = tuple(seed for seed in seeds if (ground.name, method.name, seed) not in known)
            if left:
                missing.setdefault(left, []).append(method.name)
        for seeds, names in missing.items():
            for some in [names] if ground.kind == "planted" else [[name] for name in names]:
                arguments = (ground, some, list(seeds), budget, means.on(ground.source))
                yield Job(name=f"{', '.join(some)} on {ground.name}", work=play_many, arguments=arguments)


def _seeds(
    config: Config, grounds: Sequence[Ground], ground: Ground, method: Method, listed: Sequence[str]
) -> list[int]:
    """The seeds of a method on a ground; slow methods are played on a subset, with few, unless asked for by name."""
    count = config.compare.seeds or SEEDS
    if method.name in SLOW and method.name not in listed:
        alike = [each.name for each in grounds if each.source == ground.source]
        if alike.index(ground.name) % SUBSET:
            return []
        count = min(count, SLOW_SEEDS)
    return [config.seed + each for each in seeds_of(method, count)]


def _known(ledger: Ledger, digests: dict[str, str], rules: dict[str, Any]) -> dict[tuple[str, str, int], Played]:
    """Searches that earlier runs of the command have done on the same grounds with the same rules and code."""
    found: dict[tuple[str, str, int], Played] = {}
    with ledger.understood():
        for event in ledger.events(PLAYED):
            same = digests.get(event["ground"]) == event["digest"]
            if same and all(event[name] == value for name, value in rules.items()):
                for each in map(Played.from_dict, event["searches"]):
                    found[each.ground, each.method, each.seed] = each
    return found


def code_digest() -> str:
    """A hash of what decides a search: the code of agents, search and contest, and the cards."""
    package, digest = Path(__file__).parents[1], hashlib.blake2s(digest_size=8)
    files = [path for part in ("agents", "search", "contest") for path in (package / part).glob("*.py")]
    for path in sorted((*files, *(data_dir("knowledge") / "cards").glob("*.yaml"))):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
