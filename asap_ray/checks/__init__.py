"""What a configuration may hold: small checks, each of which raises `ConfigError` for one kind of mistake.

Only what needs neither a file nor the physics is checked here. Slice names, axes and sizes that must divide are checked
by those who own them, before anything is printed.

What task=launch sends elsewhere is checked as it is to run there: a mistake is told here, and not by a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from asap_ray.checks.folders import check_memory_dir, check_run_dir
from asap_ray.checks.launch import check_launch
from asap_ray.checks.tasks import check_compare, check_learning, check_nightly, check_show
from asap_ray.checks.tiers import check_command, check_compile, check_run
from asap_ray.checks.values import (
    check_limits,
    check_llm,
    check_model,
    check_names,
    check_positive,
    check_profile,
    check_shares,
    check_slices,
    check_space,
    check_tables,
    check_texts,
)
from asap_ray.config import Config

KEYS: Iterable[Callable[[Config], None]] = (check_names, check_limits, check_positive, check_texts, check_launch)
"""Of keys by themselves, and of those of task=launch."""
CHECKS: Iterable[Callable[[Config], None]] = (
    check_model,
    check_profile,
    check_slices,
    check_space,
    check_shares,
    check_tables,
    check_compile,
    check_command,
    check_run,
    check_compare,
    check_llm,
    check_show,
    check_nightly,
    check_learning,
)
"""Of what is to run, here or elsewhere."""
FOLDERS: Iterable[Callable[[Config], None]] = (check_run_dir, check_memory_dir)
"""Of this machine's folders."""


def check(config: Config) -> Config:
    """Return `config` if every check passes.

    Raises:
        ConfigError: the first mistake found, naming its key.
    """
    for checks, what in ((KEYS, config), (CHECKS, config.asked), (FOLDERS, config)):
        for each in checks:
            each(what)
    return config
