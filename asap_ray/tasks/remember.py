"""`task=remember`: add the trials of runs to the memory, from the `events.jsonl` of each, whether or not a run ended.

So a memory that was deleted is made again, and one machine's runs are told to another's. What is there already is not
added again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asap_ray.config import Config
from asap_ray.errors import ConfigError
from asap_ray.ledger import NAME, Ledger
from asap_ray.report.outline import Block
from asap_ray.tasks.remembering import cases_of, memory_of
from asap_ray.tasks.running import tell


def run(config: Config) -> int:
    """Run the task; returns the exit status.

    Raises:
        ConfigError: the memory is switched off, or there is no run in the directory or below it.
    """
    memory = memory_of(config)
    if memory is None:
        raise ConfigError("agents.memory", False, "on for task=remember: it adds to the memory")
    folders = sorted({path.parent for path in _ledgers(config.run_path)})
    if not folders:
        raise ConfigError("run_dir", config.run_path, f"a directory with runs in it or below it, their {NAME}")
    told: dict[str, Any] = {
        "task": config.task,
        "memory": str(memory.path),
        "runs": len(folders),
        "trials": 0,
        "new": 0,
    }
    complaints = []
    for folder in folders:
        try:
            ledger = Ledger(folder)
            with ledger.understood():
                cases = cases_of(list(ledger.events()))
        except ConfigError as error:  # one foreign directory is no reason to leave out the others
            complaints.append(str(error))
            continue
        added = memory.add(cases)
        told["trials"], told["new"] = told["trials"] + len(cases), told["new"] + added.new
        complaints += [added.complaint] if added.complaint else []
    told["passed_over"] = list(dict.fromkeys(complaints))
    tell(config, told, _blocks(told))
    return 0


def _ledgers(folder: Path) -> Iterator[Path]:
    """The events of all runs in a folder and below it."""
    return (path for path in folder.rglob(NAME) if path.is_file())


def _blocks(told: dict[str, Any]) -> Iterator[Block]:
    facts = [
        ("memory", told["memory"]),
        ("runs", f"{told['runs']:,}, with {told['trials']:,} trials, of which {told['new']:,} are new"),
        *(("passed over", each) for each in told["passed_over"]),
    ]
    yield Block(title="Remembered", facts=tuple(facts))
