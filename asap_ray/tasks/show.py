"""`task=show`: what a run directory holds, from `events.jsonl` alone, whether its run ended, goes on or was killed."""

from __future__ import annotations

import contextlib

from asap_ray.config import Config
from asap_ray.errors import ConfigError
from asap_ray.ledger import NAME, Ledger
from asap_ray.report.outline import Block, dashboard_facts
from asap_ray.report.story import story_blocks, story_fields
from asap_ray.tasks.derived import write_derived
from asap_ray.tasks.running import output_of, tell
from asap_ray.tasks.story import story_of
from asap_ray.tasks.watch import watch


def run(config: Config) -> int:
    """Run the task; returns the exit status.

    Raises:
        ConfigError: the directory holds no run.
    """
    ledger = Ledger(config.run_path)
    events = list(ledger.events())
    if not any(event["kind"] == "start" for event in events):
        raise ConfigError("run_dir", config.run_path, f"a directory with a run in it, its {NAME}")
    if config.watch:
        watch(ledger, output_of(config)[0])
        events = list(ledger.events())
    with ledger.understood():
        story = story_of(events, config.run_path)
        fields = story_fields(story)
        blocks = [*story_blocks(story), Block(facts=tuple(dashboard_facts(config.run_path)))]
        with contextlib.suppress(OSError):  # who may only read a directory is still told what is in it
            write_derived(events, config.run_path)
    tell(config, fields, blocks)
    return 0
