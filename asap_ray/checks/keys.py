"""What keys may hold, as tables: names, ranges, texts, and the words of the command line that stand for a key."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from types import MappingProxyType
from typing import Any

from asap_ray.recipe import GENES

TASKS: Mapping[str, str] = MappingProxyType(
    {
        "tune": "find the plan with the shortest step on each slice, and say why",
        "explain": "take one plan apart, or with profile=PATH a trace: time by part, its floor, what one step would do",
        "scenario": "take up a published case, +scenario=NAME: its baseline, three proposals, and what it came to",
        "doctor": "tell what this machine and its cluster can do, and what to type where they cannot (no model needed)",
        "calibrate": "fit the roofline's constants to measured runs, and test them on runs left out (no model needed)",
        "compare": "hold search methods against each other on measured tables, planted faults, or with +model your job",
        "nightly": "tune all cells of a matrix, nightly=NAME, and say what improved or regressed since, and why",
        "launch": "write what runs this command on a cluster: KubeRay, Slurm, ray job submit, TPU VMs",
        "export": "write a plan of run_dir as configs of trainers, to=maxtext and so on (no model needed)",
        "train_policy": "train the policy of agents=policy on measured runs and your own (no model needed)",
        "show": "tell what a run directory holds: of run_dir, be it over, going on or killed (no model needed)",
        "remember": "add the trials of the runs in run_dir and below it to the memory of agents (no model needed)",
        "validate": "hold the roofline against public measurements: errors, rankings, memory, floors (no model needed)",
    }
)
# The command line is a contract: these names are taken, and say so, before what they name is there.
LATER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "tiers": ("replay",),
    }
)
NOT_YET = "not part of this version"
NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "task": tuple(TASKS),
        "tiers": ("auto", "roofline", "compile", "run", "command"),
        "agents.brain": ("auto", "playbook", "llm", "policy", "none"),
        "export.what": ("plans", "trajectories"),
        "search.method": ("random", "tpe", "gp", "cmaes", "nsga2", "qmc", "grid"),
        "search.vary": (*GENES, "none"),
        "output": ("auto", "rich", "plain", "json"),
        "compile.trainer": ("ours", "maxtext"),
        "compare.tasks": ("replay", "planted"),
        "compare.leave_out": ("source", "model"),
        "launch.target": ("local", "ray_job", "slurm", "kuberay", "gce_tpu"),
        "launch.task": ("tune", "nightly", "doctor", "calibrate", "compare", "validate"),
        "workload.optimizer": ("adamw",),
    }
)
# Wide enough for any real job, narrow enough that a slip of the keyboard is caught.
LIMITS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "workload.global_batch": (1, 2**24),
        "workload.seq_len": (1, 2**24),
        "budget.compile": (1, 1000),
        "budget.trials": (0, 10_000),
        "search.proposals": (1, 100),
        "agents.population": (0, 10_000),
        "train_policy.made_up": (0, 1000),
        "train_policy.steps": (1, 100_000),
        "llm.max_calls": (0, 1_000_000),
        "llm.max_tokens": (0, 2**40),
        "command.steps": (2, 10_000),
        "command.workers": (1, 256),
        "compile.workers": (1, 256),
        "run.steps": (3, 10_000),
        "run.warmup": (1, 1000),
        "run.confirm": (0, 100),
        "run.best": (1, 100),
        "run.devices": (1, 64),
        "run.proxy_layers": (1, 10_000),
        "run.cores": (1, 1024),
        "compare.seeds": (1, 10_000),
        "compare.trials": (1, 10_000),
        "compare.truths": (1, 1000),
        "ray.retries": (0, 100),
        "launch.replicas": (1, 10_000),
        "nightly.retries": (0, 10),
        "nightly.parallel": (1, 64),
        "launch.cpus": (1, 1024),
        "launch.memory_gb": (1, 65_536),
        "seed": (0, 2**32 - 1),
        "top": (1, 1000),
    }
)
POSITIVE = (
    *("budget.minutes", "budget.chip_hours", "llm.timeout_s", "llm.max_usd", "ray.reserve_s", "launch.hours"),
    *("compile.timeout_s", "run.timeout_s", "run.seconds", "command.timeout_s"),
)
"""Numbers that must be above 0, and finite."""
SHARES: Mapping[str, float] = MappingProxyType({"search.share": 1.0, "search.gap": 1.0, "space.margin": 0.9})
"""Shares of something, from 0 to so much; with all of the memory kept free no plan would be left."""
TEXTS = (
    *("plan", "baseline", "profile", "run_dir", "config_dir", "model.hf_config", "workload.precision", "to"),
    *("hardware.slices", "validate.tables", "calibrate.tables", "nightly.matrix", "nightly.webhook_hosts"),
    *("compare.tables", "compare.only", "compare.methods", "compile.cache", "compile.xla", "ray.address"),
    *("run.proxy_hardware", "agents.memory_dir", "agents.policy", "llm.base_url", "llm.model", "llm.expert"),
    *(f"launch.{name}" for name in ("name", "image", "wheel", "results", "storage", "schedule", "time_zone")),
    *(f"launch.{name}" for name in ("address", "options", "project", "zone")),
    *(f"train_policy.{name}" for name in ("tables", "runs", "leave_out")),
    *(f"command.{name}" for name in ("template", "python", "script", "cwd", "args", "env")),
)
"""Texts and lists of them that may be left out, but not be empty."""
SHORT: Mapping[str, str] = MappingProxyType(
    {
        "hardware": "hardware.slices",
        "agents": "agents.brain",
        "search": "search.method",
        "command": "command.template",
        "nightly": "nightly.matrix",
        "compile.with": "compile.trainer",  # a name that Python has taken
    }
)
"""Words of the command line that stand for a key."""


def value_at(config: Any, key: str) -> Any:
    """The value at a dotted key of a dataclass or mapping; None where a mapping lacks it."""
    return reduce(
        lambda node, name: node.get(name) if isinstance(node, Mapping) else getattr(node, name), key.split("."), config
    )


def items(value: Any) -> list[Any]:
    """What a key holds, one by one, be it a list or not."""
    return list(value) if isinstance(value, list) else [value]


def spoken(key: str) -> str:
    """A key as the command line has it."""
    return next((short for short, long in SHORT.items() if long == key), key)


def share_text(key: str) -> str:
    """What is allowed at a key of `SHARES`, in words."""
    return f"a share from 0 to {SHARES[key]:g}"


def range_text(key: str) -> str:
    """The numbers allowed at a key of `LIMITS`, in words."""
    low, high = LIMITS[key]
    return f"a whole number from {low:,} to {high:,}"
