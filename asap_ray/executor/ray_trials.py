"""Ray Tune in the host: a searcher that asks the command, a trainable that runs a job, and outcomes as they come."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.execution import tune_controller
from ray.tune.execution.placement_groups import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.search import Searcher
from ray.tune.utils.object_cache import _ObjectCache

from asap_ray.executor import ray_work
from asap_ray.executor.ray_line import Line

IDLE_S = 0.5
"""How long the searcher waits for a job where nothing runs: Tune asks without a pause."""


class Jobs(Searcher):
    """Suggests the job that the command has sent, and nothing while there is none."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line
        self._numbers: dict[str, int] = {}

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """The next job as a trial's configuration; None for now where there is none."""
        sent = self._line.next(0.0 if self._numbers else IDLE_S)
        if sent is None:
            return None
        self._numbers[trial_id] = sent.number
        return {"needs": dict(sent.needs), "job": sent.job, "path": self._line.path}

    def told(self, trial_id: str, answer: bytes) -> None:
        """Pass on how a trial ended; what is said of it later is not."""
        if (number := self._numbers.pop(trial_id, None)) is not None:
            self._line.answer(number, answer)

    def lost(self, trial_id: str, why: str) -> None:
        """Say that a trial's worker was lost each time."""
        if (number := self._numbers.pop(trial_id, None)) is not None:
            self._line.answer(number, f"its Ray worker was {self._line.lost}: {why}", lost=True)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Nothing: the outcome has gone its way, or `Answers` has the reason."""

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune writes down what it would be taken up from, which is not done here."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the ledger is what a run is taken up from."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing, as `save`."""


class Answers(tune.Callback):
    """Passes outcomes on as they come, and why there is none."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Take the outcome out of the result: Tune would keep it, and write it down."""
        if answer := result.pop("outcome", None):
            self._jobs.told(trial.trial_id, answer)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A trial whose worker was lost, and again each time that Tune tried once more."""
        self._jobs.lost(trial.trial_id, _last_error(trial))


def _last_error(trial: Trial) -> str:
    """What Ray says of a trial's last failure, in one line: `Trial.get_error` looks where it is not copied to yet."""
    lines = Path(trial.error_file).read_text().split("\n") if trial.error_file else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "Ray does not say why")
    return last.partition(" Some common causes")[0]


class JobTrial(tune.Trainable):
    """Runs one job in a process of its own; it reports an outcome, and raises nothing."""

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """What the job asks for, on one node."""
        return PlacementGroupFactory([config["needs"]])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next job in the same worker: jobs have processes of their own."""
        return True

    def step(self) -> dict[str, Any]:
        """The whole trial."""
        return {"done": True, "outcome": ray_work.perform(self.config["job"], self.config["path"], fresh=True)}


class AllIdle(_ObjectCache):
    """Keeps every idle worker, where Tune keeps one: between two rounds all are idle, and each that is started anew
    takes two seconds of a core beside the trials that are timed.

    Only where a trial waits that none of them suits are the others given up: they may hold what it needs.
    """

    def cache_object(self, key: Any, obj: Any) -> bool:
        """Keep a worker that asked for `key`."""
        self._cached_objects[key].append(obj)
        self._num_cached_objects += 1
        return True

    def flush_cached_objects(self, force_all: bool = False) -> Generator[Any, None, None]:
        """Give up all, or those that asked for something else than what is waited for."""
        wanted = [key for key, count in self._max_num_objects.items() if count > 0]
        if force_all or any(not self._cached_objects[key] for key in wanted):
            for key in [key for key in self._cached_objects if force_all or key not in wanted]:
                while self._cached_objects[key]:
                    self._num_cached_objects -= 1
                    yield self._cached_objects[key].pop()


def serve(line: Line, folder: Path) -> None:
    """Take jobs from the line and answer each, for ever; a trial whose worker is lost is tried again, `line.retries`
    times.

    A worker starts in two seconds of a core. On this machine it takes one trial after another; on a cluster it would
    hold on to what it was given, which another trial may be waiting for.
    """
    jobs, own = Jobs(line), line.path is not None
    tune_controller._ObjectCache = AllIdle  # pyright: ignore[reportPrivateImportUsage] (Tune has no setting for it)
    tuner = tune.Tuner(
        JobTrial,
        tune_config=tune.TuneConfig(search_alg=jobs, num_samples=-1, reuse_actors=own),
        run_config=tune.RunConfig(
            storage_path=str(folder / "tune"),
            verbose=0,
            callbacks=[Answers(jobs)],
            failure_config=tune.FailureConfig(max_failures=line.retries),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    tuner.fit()
