"""The configuration: what a command line can set, as dataclasses nested by owner.

`conf/` holds the settings that are chosen by name (models, stacks, chips); keys, types and defaults live here, once.
`overrides.configure` turns command-line words into a `Config`; nothing below the task sees Hydra or OmegaConf.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from asap_ray.remote import local_side, scheme_of

MODEL_FREE = ("validate", "calibrate", "show", "export", "remember", "train_policy", "doctor", "nightly")
"""Tasks that need neither a model nor hardware."""
TUNING = ("tune", "doctor", "compare", "nightly")
"""Tasks that take what a search takes: tune, and those that look at or pass on a command of it."""
COMPILED = 6
"""Plans that are compiled where the compile tier is asked for by name and no budget is given."""
MEASURING = ("run", "command")
"""Tiers whose trials are timed by a clock."""
RUNS = 12
"""Plans that are run where the run or the command tier is asked for and no budget is given."""
AUTO_MINUTES = 5.0
"""Minutes that a search takes where tiers is auto and no budget is given."""
LONGEST_LABEL = 120
"""Characters of a run directory's name before its hash; file systems allow 255 bytes."""


def _help(text: str) -> dict[str, str]:
    """The line that --help prints for a key."""
    return {"help": text}


@dataclass(frozen=True, kw_only=True, slots=True)
class HardwareConfig:
    """Which slices to plan for; `hardware=X` on the command line is short for `hardware.slices=X`."""

    slices: list[str] = field(
        default_factory=lambda: ["v5p-128"],
        metadata=_help("a slice name, or a list of them to rank: [v5p-128,h100x64]"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadConfig:
    """The training shape; null takes what the model was published with."""

    global_batch: int | None = field(default=None, metadata=_help("sequences per optimizer step"))
    seq_len: int | None = field(default=None, metadata=_help("tokens per sequence"))
    precision: str | None = field(default=None, metadata=_help("number format of the matrix products (bf16)"))
    optimizer: str | None = field(default=None, metadata=_help("optimizer whose state is kept"))


@dataclass(frozen=True, kw_only=True, slots=True)
class SpaceConfig:
    """What of the plan space is open."""

    fix: dict[str, Any] = field(default_factory=dict, metadata=_help("pin axes and knobs: {tensor: 8, remat: full}"))
    forbid: list[dict[str, Any]] = field(
        default_factory=list, metadata=_help("leave out every plan that matches one of these: [{pipeline: 2}]")
    )
    numerics: list[str] = field(default_factory=list, metadata=_help("knobs that may change the numerics: [precision]"))
    margin: float = field(
        default=0.05, metadata=_help("share of the usable memory that a plan leaves free: no estimate is exact")
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetConfig:
    """What a search may spend; null is no limit of its own."""

    trials: int | None = field(
        default=None, metadata=_help("trials at most; 0 prints what would be tried first and what that costs")
    )
    compile: int | None = field(
        default=None,
        metadata=_help(
            f"plans that a compiler is to take through; null is {COMPILED} where tiers names compile and no other "
            "budget is given"
        ),
    )
    minutes: float | None = field(
        default=None,
        metadata=_help(
            "wall-clock minutes after which nothing more is tried, of all runs in one run_dir together; null is "
            f"{AUTO_MINUTES:g} where tiers is auto and no other budget is given; task=compare shares them among its "
            "searches, and has no limit of its own"
        ),
    )
    chip_hours: float | None = field(default=None, metadata=_help("chip hours at most; compiling takes none"))


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig:
    """How trials are chosen; `search=X` on the command line is short for `search.method=X`."""

    method: str = field(
        default="tpe",
        metadata=_help("the sampler beside the agents, and the whole search with agents=none; grid is exhaustive"),
    )
    share: float = field(default=0.2, metadata=_help("share of the trials that are the sampler's beside the agents"))
    vary: list[str] = field(
        default_factory=lambda: ["flags"],
        metadata=_help(
            "what agents try besides plans, around the fastest trial: flags (the further bundles of compile.xla) and, "
            "in our own trainer, hold, save and blocks (docs/recipes.md); or none"
        ),
    )
    proposals: int = field(default=3, metadata=_help("trials that a round releases at once"))
    gap: float = field(
        default=0.0, metadata=_help("stop where no plan left can be more than this share faster by its floor")
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentsConfig:
    """Who proposes; `agents=X` on the command line is short for `agents.brain=X`."""

    brain: str = field(
        default="auto",
        metadata=_help(
            "the brain that proposes plans to try; auto is llm where a key or an endpoint is set, else playbook; none "
            "leaves it to search"
        ),
    )
    knowledge: bool = field(default=True, metadata=_help("whether agents read the cards of knowledge/cards/"))
    memory: bool = field(default=True, metadata=_help("whether agents recall finished runs, and what they add to them"))
    memory_dir: str | None = field(
        default=None, metadata=_help("folder of the memory of finished runs; null is the user's own data folder")
    )
    policy: str | None = field(
        default=None,
        metadata=_help("for agents=policy, weights that task=train_policy wrote; null is those that are carried"),
    )
    population: int = field(
        default=0, metadata=_help("plans of a population that evolves beside the proposals; 0 is none")
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmConfig:
    """The language model of agents=llm: any endpoint that speaks OpenAI's chat completions.

    The key comes from the environment alone: ASAP_RAY_LLM_KEY, or else OPENAI_API_KEY.
    """

    base_url: str | None = field(
        default=None,
        metadata=_help("the endpoint, as http://localhost:8000/v1; null is OPENAI_BASE_URL or OpenAI"),
    )
    model: str | None = field(default=None, metadata=_help("the model that is asked first, a cheap one"))
    expert: str | None = field(
        default=None, metadata=_help("a dearer model, asked where the first fails, repeats itself or gets nowhere")
    )
    max_calls: int = field(default=100, metadata=_help("calls of one run at most"))
    max_tokens: int = field(default=500_000, metadata=_help("tokens of one run at most, asked and answered"))
    max_usd: float | None = field(
        default=None, metadata=_help("dollars of one run at most; needs llm.prices of each model")
    )
    prices: dict[str, Any] = field(
        default_factory=dict,
        metadata=_help("dollars a million tokens asked and answered: {my-model: [0.15, 0.6]}; others are unknown"),
    )
    timeout_s: float = field(default=60.0, metadata=_help("seconds after which a call is given up"))
    replay: bool = field(
        default=False, metadata=_help("answer from the record of the run in run_dir alone, without a network")
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileConfig:
    """How plans are compiled."""

    workers: int | None = field(
        default=None, metadata=_help("compilations side by side; null is as many as cores and memory allow")
    )
    cache: str | None = field(
        default=None,
        metadata=_help("folder of finished compilations, shared by all runs; null is the user's own cache"),
    )
    timeout_s: float = field(default=900.0, metadata=_help("seconds after which a compilation is given up"))
    trainer: str = field(
        default="ours",
        metadata=_help("whose train step is compiled, asap_ray's own or that of the maxtext which command.python has"),
    )
    xla: list[str] = field(
        default_factory=lambda: ["auto"],
        metadata=_help(
            "bundles of compiler flags of conf/xla/: plans are compiled with the first, the best two with each; auto "
            "is async on TPUs, as trainers set it there, else default"
        ),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandConfig:
    """How the user's own trainer is run; `command=X` on the command line is short for `command.template=X`."""

    template: str | None = field(
        default=None, metadata=_help("the template of conf/command/ that has its words; null is the stack's own")
    )
    python: str | None = field(
        default=None, metadata=_help("the interpreter that the trainer is installed for; null is the one of asap_ray")
    )
    script: str | None = field(default=None, metadata=_help("the trainer's own script, where the template names one"))
    cwd: str | None = field(default=None, metadata=_help("where the trainer starts; null is a folder of each trial"))
    steps: int | None = field(default=None, metadata=_help("steps that are timed; null is as the template says"))
    timeout_s: float = field(default=900.0, metadata=_help("seconds after which a trial is given up"))
    workers: int | None = field(default=None, metadata=_help("trainers side by side; null is one at a time"))
    args: list[str] = field(
        default_factory=list,
        metadata=_help("further words of the command; key=value takes the place of the template's word of that key"),
    )
    env: list[str] = field(
        default_factory=list, metadata=_help("names of variables that the trainer gets too, such as HF_TOKEN")
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """How plans are run on devices (tiers=run)."""

    steps: int = field(default=10, metadata=_help("steps of a trial that are timed, after the warm-up"))
    warmup: int = field(default=1, metadata=_help("steps before them, which are not"))
    seconds: float = field(
        default=5.0, metadata=_help("timed seconds after which a trial has enough, three steps at least")
    )
    timeout_s: float = field(default=600.0, metadata=_help("seconds after which a trial is given up"))
    confirm: int = field(
        default=2, metadata=_help("runs of the baseline and the best few at the end, alone and in turns; 0 is none")
    )
    best: int = field(default=3, metadata=_help("how many of the best are confirmed"))
    trace: bool = field(default=True, metadata=_help("profile one more step of each trial"))
    devices: int = field(
        default=4,
        metadata=_help("hardware=local without GPUs: devices that the processor stands for"),
    )
    proxy_layers: int | None = field(
        default=None, metadata=_help("run so many layers in place of all, and carry the step over by physics")
    )
    proxy_hardware: str | None = field(
        default=None, metadata=_help("run on this smaller slice of the same chips, with as much less of the batch")
    )
    cores: int = field(default=1, metadata=_help("there: cores that each trial holds alone; others run beside it"))


@dataclass(frozen=True, kw_only=True, slots=True)
class RayConfig:
    """The cluster that runs trials."""

    address: str | None = field(
        default=None, metadata=_help("auto, local, or HOST:PORT of a running Ray cluster; null is auto")
    )
    retries: int = field(
        default=1,
        metadata=_help(
            "how often a trial is run again of which Ray loses a worker or a node, as where it is preempted"
        ),
    )
    reserve_s: float = field(
        default=100.0, metadata=_help("seconds that the hosts of one trial may take to be free for it, all together")
    )
    dashboard: bool = field(
        default=False,
        metadata=_help("show the study as metrics of Ray, and start Ray's dashboard where Ray is this machine's own"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidateConfig:
    """What predictions are held against."""

    tables: list[str] | None = field(
        default=None, metadata=_help("tables of measured runs, CSV or Parquet; null takes those that are carried")
    )
    recompile: bool = field(
        default=False,
        metadata=_help("with tiers=[compile]: compile what the cache lacks, and write the record of results anew"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrateConfig:
    """What constants are fitted to."""

    tables: list[str] | None = field(
        default=None, metadata=_help("tables of measured runs; null takes those that are carried, and starts afresh")
    )
    folds: bool = field(default=True, metadata=_help("also predict each run from the others (slower)"))


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareConfig:
    """Which search methods are held against each other, and on what."""

    tasks: list[str] = field(
        default_factory=lambda: ["replay"],
        metadata=_help("what is searched without +model: replay of measured tables, planted faults in large spaces"),
    )
    tables: list[str] | None = field(
        default=None, metadata=_help("tables of measured runs to play back; null takes those that are carried")
    )
    only: str | None = field(default=None, metadata=_help("only what has this text in its name"))
    methods: list[str] = field(
        default_factory=lambda: ["auto"],
        metadata=_help("methods by name; auto is the usual set, ablations the playbook without a part each, or all"),
    )
    seeds: int | None = field(
        default=None, metadata=_help("seeds of each method that a seed changes; null is 20, with +model 3")
    )
    trials: int | None = field(
        default=None, metadata=_help("trials of one search at most; null is 100, with +model 12")
    )
    truths: int = field(default=3, metadata=_help("planted truths of each large space"))
    leave_out: str = field(
        default="source",
        metadata=_help(
            "what constants of a stack are not fitted to: any row (source), or the rows of the same model (model)"
        ),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchConfig:
    """Where task=launch sends the command."""

    target: str = field(default="kuberay", metadata=_help("what the files are for"))
    task: str = field(default="tune", metadata=_help("the task that runs there"))
    name: str | None = field(default=None, metadata=_help("name of the job; null is made of model and hardware"))
    image: str | None = field(default=None, metadata=_help("the container image, as built by the Containerfile"))
    wheel: str | None = field(default=None, metadata=_help("a wheel of asap_ray; null makes one of what runs now"))
    results: str | None = field(
        default=None, metadata=_help("the run directory there; null is /results, or a folder beside the files")
    )
    storage: str | None = field(
        default=None, metadata=_help("kuberay: the PersistentVolumeClaim of the run directory; null keeps nothing")
    )
    hours: float = field(default=12.0, metadata=_help("hours after which the cluster ends the job"))
    schedule: str | None = field(
        default=None, metadata=_help("kuberay: when to run it again, as cron has it: 0 1 * * * is one at night")
    )
    time_zone: str | None = field(default=None, metadata=_help("of the schedule, such as Europe/Zurich; null is UTC"))
    replicas: int = field(default=1, metadata=_help("how many of each slice there are, for trials side by side"))
    cpus: int = field(default=8, metadata=_help("cores of the head, which compiles; of each node with slurm"))
    memory_gb: int = field(default=32, metadata=_help("memory of the same"))
    address: str = field(
        default="http://127.0.0.1:8265", metadata=_help("ray_job: where the cluster's dashboard answers")
    )
    options: list[str] = field(
        default_factory=list, metadata=_help("slurm: further options of sbatch: [--partition=gpu,--account=me]")
    )
    project: str | None = field(default=None, metadata=_help("gce_tpu: the Google Cloud project"))
    zone: str | None = field(default=None, metadata=_help("gce_tpu: the zone, such as us-east5-a"))


@dataclass(frozen=True, kw_only=True, slots=True)
class NightlyConfig:
    """A matrix of studies, night after night; `nightly=X` on the command line is short for `nightly.matrix=X`.

    budget.minutes and budget.chip_hours are of all cells together, other budgets of each.
    """

    matrix: str | None = field(default=None, metadata=_help("the matrix of conf/nightly/: workloads, slices, stacks"))
    retries: int = field(default=1, metadata=_help("how often a cell that was lost is run again"))
    parallel: int = field(
        default=1, metadata=_help("cells side by side, which share the cores; timed trials need a cluster for that")
    )
    tolerance: float = field(
        default=0.01, metadata=_help("share by which compiled steps may differ; measured ones by their intervals too")
    )
    webhook_hosts: list[str] = field(
        default_factory=list,
        metadata=_help("hosts that may be told how a night ended, at ASAP_RAY_WEBHOOK of the environment"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportConfig:
    """What task=export writes."""

    what: str = field(
        default="plans",
        metadata=_help("a plan as configs of trainers, or what was decided in all runs below run_dir, to learn from"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainPolicyConfig:
    """What the policy is trained on."""

    tables: list[str] | None = field(
        default=None, metadata=_help("tables of measured runs; null takes those that are carried")
    )
    runs: list[str] = field(
        default_factory=list, metadata=_help("run directories, or folders of them, whose trials are learnt from too")
    )
    leave_out: list[str] = field(
        default_factory=list,
        metadata=_help("sources or workloads, by part of their name, to leave out, and to test the policy on"),
    )
    made_up: int = field(default=16, metadata=_help("workloads with made-up errors of the roofline that are added"))
    steps: int = field(default=600, metadata=_help("steps of training"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """One command: everything that a task needs, checked."""

    task: str = field(default="tune", metadata=_help("what to do"))
    model: dict[str, Any] = field(
        default_factory=dict,
        metadata=_help("an architecture by name, or hf_config: path of a Hugging Face config.json"),
    )
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    stack: dict[str, Any] = field(default_factory=dict, metadata=_help("the trainer that the plan is for, by name"))
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    scenario: dict[str, Any] = field(
        default_factory=dict, metadata=_help("a published case to take up, by name: what it started from and came to")
    )
    plan: str | None = field(default=None, metadata=_help("the plan to explain, in one line; null explains the best"))
    profile: str | None = field(
        default=None,
        metadata=_help("for task=explain: a trace of JAX's profiler, its file or a folder above it; needs no model"),
    )
    baseline: str | None = field(
        default=None,
        metadata=_help("a plan in one line, a file with one, or your trainer's own config, to compare with"),
    )
    to: list[str] | None = field(
        default=None, metadata=_help("for task=export, a trainer or a list of them; null is all that can say the plan")
    )
    tiers: list[str] = field(
        default_factory=lambda: ["auto"],
        metadata=_help(
            "where figures come from: with [roofline,compile] plans go through the chip's own compiler, with "
            "[roofline,run] they are trained for a few steps, with [roofline,command] by your own trainer; auto is "
            "roofline, and compile too where that compiler is "
            "installed; with [roofline,compile,run] the best that were compiled are run first"
        ),
    )
    agents: AgentsConfig = field(default_factory=AgentsConfig)
    llm: LlmConfig = field(default_factory=LlmConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    space: SpaceConfig = field(default_factory=SpaceConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    compile: CompileConfig = field(default_factory=CompileConfig)
    command: CommandConfig = field(default_factory=CommandConfig)
    run: RunConfig = field(default_factory=RunConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    nightly: NightlyConfig = field(default_factory=NightlyConfig)
    validate: ValidateConfig = field(default_factory=ValidateConfig)
    calibrate: CalibrateConfig = field(default_factory=CalibrateConfig)
    compare: CompareConfig = field(default_factory=CompareConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    train_policy: TrainPolicyConfig = field(default_factory=TrainPolicyConfig)
    watch: bool = field(default=False, metadata=_help("task=show: follow a run that goes on, until it ends"))
    seed: int = field(default=0, metadata=_help("same seed, same run"))
    top: int = field(default=10, metadata=_help("how many plans are listed"))
    run_dir: str | None = field(
        default=None,
        metadata=_help(
            "where the files go, a path or a URI such as s3://bucket/folder (gs://, abfs://, hdfs://, file://, or what "
            "fsspec knows); null is runs/<model>-<hardware>-<stack>, with a hash of all else that was asked for"
        ),
    )
    output: str = field(
        default="auto", metadata=_help("auto is rich on a terminal and plain elsewhere; json is one object a line")
    )
    config_dir: str | None = field(
        default=None, metadata=_help("a folder of your own laid out as conf/: model/, stack/, hardware/, xla/")
    )
    words: list[str] = field(default_factory=list)
    """What it was composed of, as typed; no key of the command line."""

    @property
    def needs_model(self) -> bool:
        """Whether a model must be named: a trace may be explained by itself, and a baseline may be a job that says its
        model."""
        explains = self.task == "explain" and self.profile is not None
        return self.asked.task not in (*MODEL_FREE, "compare") and not explains and self.baseline is None

    @property
    def asked(self) -> Config:
        """The command that is to run: this one, or the one that task=launch sends elsewhere."""
        return self if self.task != "launch" else replace(self, task=self.launch.task, launch=LaunchConfig())

    @property
    def compiles(self) -> bool:
        """Whether the compile tier is asked for: by name, or with `auto` by a budget for it."""
        return "compile" in self.tiers or ("auto" in self.tiers and self.budget != BudgetConfig())

    @property
    def runs(self) -> bool:
        """Whether plans are run on devices."""
        return "run" in self.tiers

    @property
    def commands(self) -> bool:
        """Whether plans are run by the user's own trainer."""
        return "command" in self.tiers

    @property
    def measures(self) -> bool:
        """Whether trials are timed by a clock."""
        return self.runs or self.commands

    @property
    def cascades(self) -> bool:
        """Whether plans are compiled first, and the best of them timed."""
        return "compile" in self.tiers and self.measures

    @property
    def may_compile(self) -> bool:
        """Whether plans are compiled where that is possible: asked for, or left to `auto` in a search."""
        return self.compiles or ("auto" in self.tiers and self.task in TUNING and not self.measures)

    @property
    def wanted(self) -> int | None:
        """Plans whose trials are to come to a step time; None where another budget says when to stop."""
        if self.budget != BudgetConfig():
            return self.budget.compile
        return RUNS if self.measures else COMPILED if "compile" in self.tiers else None

    @property
    def minutes(self) -> float | None:
        """Minutes that a search may take; None is no limit."""
        alone = "compile" not in self.tiers and not self.measures and self.budget == BudgetConfig()
        searches = self.task != "compare"  # of which each has so many trials, and none may go without
        return AUTO_MINUTES if alone and searches else self.budget.minutes

    @property
    def model_name(self) -> str:
        """Name of the model; one read from a config.json is called after the folder that holds the file, and one read
        from a baseline after that file."""
        if not self.model and self.baseline is not None:
            return Path(self.baseline).stem[:LONGEST_LABEL] or "model"
        if "hf_config" not in self.model:
            return str(self.model.get("name", "model"))
        path = Path(str(self.model["hf_config"])).absolute()
        return path.parent.name if path.stem == "config" else path.stem

    @property
    def stack_name(self) -> str:
        """Name of the trainer's stack."""
        return str(self.stack.get("name", "stack"))

    @property
    def remote_dir(self) -> str | None:
        """The run directory where it is a URI: the folder out there of which `run_path` is this machine's side."""
        return self.run_dir if scheme_of(self.run_dir) else None

    @property
    def run_path(self) -> Path:
        """The run directory, absolute; the task creates it."""
        if self.remote_dir is not None:
            return local_side(self.remote_dir)
        # os.path leaves ~name as it is where there is no such user; Path raises.
        return Path(os.path.expanduser(self.run_dir or default_run_dir(self))).absolute()


def default_run_dir(config: Config, changes: Mapping[str, str] | None = None) -> str:
    """Where a run goes that was not told: the same command has the same folder, and two that differ have two.

    `runs/<model>-<hardware>-<stack>`, and a hash of whatever else decides what is found, where any of it is given. What
    only says how the answer is shown or reached (top, output, tiers, agents, search, budget, compile) is not part of
    it, so that a run can be taken up again with more of it.

    Args:
        config: what was asked for.
        changes: entries of the named model and stack that were changed, by key.
    """
    config = config.asked
    compares = config.task == "compare"
    if config.task in MODEL_FREE or (not config.model and (compares or config.profile is not None)):
        label = f"{config.task}-{config.nightly.matrix}" if config.task == "nightly" else config.task
    else:
        subject = str(config.scenario["name"]) if config.task == "scenario" else config.model_name
        label = "-".join((subject, "+".join(config.hardware.slices), config.stack_name))
    name = re.sub(r"[^\w.+-]+", "_", label)
    forbidden = sorted(json.dumps(entry, sort_keys=True, default=str) for entry in config.space.forbid)
    space = {**asdict(config.space), "forbid": forbidden, "numerics": sorted(config.space.numerics)}
    plain, file = asdict(SpaceConfig()), config.model.get("hf_config")
    rest = {
        "changes": dict(changes or {}),
        "model": str(Path(str(file)).absolute()) if file else None,  # two of one name lie in two folders
        "workload": {key: value for key, value in asdict(config.workload).items() if value is not None},
        "space": {key: value for key, value in space.items() if value != plain[key]},
        "plan": config.plan,
        "profile": str(Path(os.path.expanduser(config.profile)).absolute()) if config.profile else None,
        "baseline": config.baseline,
        "tables": sorted(str(Path(table).absolute()) for table in config.validate.tables or ()),
        "fitted_to": sorted(str(Path(table).absolute()) for table in config.calibrate.tables or ()),
        "unfolded": not config.calibrate.folds,
        "compared": _compared(config) if compares else None,
        "learnt": asdict(config.train_policy) if config.train_policy != TrainPolicyConfig() else None,
        "measured": config.task in MODEL_FREE and "local" in config.hardware.slices,
        "config_dir": str(Path(config.config_dir).absolute()) if config.config_dir else None,  # chips and constants
        "seed": config.seed,
        "label": label if len(name) > LONGEST_LABEL else None,
    }
    given = {key: value for key, value in rest.items() if value}
    digest = hashlib.sha256(json.dumps(given, sort_keys=True, default=str).encode()).hexdigest()[:8]
    return str(Path("runs") / (name[:LONGEST_LABEL] + (f"-{digest}" if given else "")))


def _compared(config: Config) -> dict[str, Any]:
    """What of a comparison decides its outcome; more seeds and methods go on in the same directory."""
    given, plain = asdict(config.compare), asdict(CompareConfig())
    found = {name: given[name] for name in ("tables", "trials", "leave_out") if given[name] != plain[name]}
    return found | ({"width": config.search.proposals} if config.search.proposals != SearchConfig().proposals else {})
