"""The command line: a mistake is one line (key, value, what is allowed, nearest name); what is right arrives whole."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from asap_ray.config import Config
from asap_ray.settings import data_dir

TINY = "+model=tiny"


@pytest.fixture
def configured(command, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Config]]:
    """Run a command line with tasks that only keep what they were handed."""
    handed: list[Config] = []

    def keep(config: Config) -> int:
        handed.append(config)
        return 0

    for task in ("tune", "explain"):
        stub = types.ModuleType(f"asap_ray.tasks.{task}")
        stub.run = keep
        monkeypatch.setitem(sys.modules, f"asap_ray.tasks.{task}", stub)

    def run(*argv: str) -> list[Config]:
        handed.clear()
        ended = command(*argv)
        assert ended.status == 0, ended.err
        return list(handed)

    return run


# key=value as told back, then words that the rest of the line must hold
MISTAKES = {
    (TINY, "stack=maxtxt"): ("stack=maxtxt", "megatron", "did you mean maxtext?"),
    ("+model=lama70b",): ("model=lama70b: did you mean llama70b? allowed:", "mixtral8x7b"),
    ("model=",): ("model=", "llama70b"),
    ("model=[tiny,llama70b]",): ("model=[tiny,llama70b]", "llama70b"),
    ("model=../../etc/passwd",): ("model=../../etc/passwd", "llama70b"),
    (TINY, "+model=llama70b"): ("model=tiny", "more than once"),
    (TINY, "+model.hf_config=x.json"): ("+model.hf_config=x.json", "not both"),
    ("+model.hf_config=",): ("model.hf_config=", "not empty"),
    (TINY, "task=tun"): ("task=tun", "explain", "did you mean tune?"),
    (TINY, "task=null"): ("task=null", "tune, explain"),
    ("task=validate", "validate.tables=[a.csv]"): ("validate.tables=a.csv", "does not exist", "Parquet or CSV"),
    ("task=validate", "validate.tables=[]"): ("validate.tables=[]", "at least one table"),
    ("task=validate", "validate.tables={a: 1}"): ("validate.tables=", "a list: [a,b]"),
    ("task=validate", "validate.tables=[[a]]"): ("validate.tables=", "a list of names"),
    ("task=validate", "validate.tables=[null]"): ("validate.tables=", "a list of names"),
    ("task=validate", "validate.tables="): ("validate.tables=", "not empty"),
    ("task=validate", "validate.table=a.csv"): ("validate.table=a.csv", "did you mean validate.tables?"),
    ("+scenario=slow",): ("scenario=slow", "asap_communication, asap_compute, asap_hbm"),
    (TINY, "+scenario=asap_hbm"): ("+model=tiny", "not with +scenario"),
    ("task=scenario",): ("+scenario=", "asap_communication, asap_compute, asap_hbm"),
    (TINY, "task=scenario"): ("+scenario=", "asap_communication, asap_compute, asap_hbm"),
    (TINY, "tiers=rofline"): ("tiers=rofline", "auto, roofline, compile", "did you mean roofline?"),
    (TINY, "tiers=[roofline,run]"): ("hardware=v5p-128", "local, this machine, or with ray.address=HOST:PORT"),
    (TINY, "tiers=[roofline,run,command]"): ("tiers=", "one of run and command: each measures another trainer"),
    (TINY, "tiers=[roofline,run,compile]", "compile.with=maxtext"): ("compile.with=maxtext", "[compile,run] ours"),
    (TINY, "tiers=[roofline,compile,command]"): ("compile.with=ours", "[compile,command] maxtext"),
    (TINY, "run.steps=20"): ("run.steps=20", "only with the run tier"),
    (TINY, "tiers=run", "run.steps=2"): ("run.steps=2", "a whole number from 3"),
    (TINY, "hardware=local", "tiers=run", "run.cores=1000"): ("run.cores=1000", "the cores of this machine"),
    (TINY, "tiers=replay"): ("tiers=replay", "not part of this version"),
    (TINY, "tiers=[]"): ("tiers=[]", "at least one of: auto, roofline, compile"),
    ("task=calibrate", "tiers=compile"): ("tiers=compile", "for task=tune, explain and validate"),
    ("task=validate", "validate.recompile=true"): (
        "validate.recompile=true",
        "only with task=validate tiers=[compile]",
    ),
    ("task=validate", "tiers=compile", "validate.tables=[a.csv]"): ("validate.tables=", "not with tiers=[compile]"),
    ("task=validate", "tiers=compile", "compile.workers=1"): ("compile.workers=1", "only with validate.recompile=true"),
    (TINY, "tiers=roofline", "budget.compile=3"): ("budget.compile=3", "tiers=[roofline,compile]"),
    (TINY, "tiers=roofline", "compile.workers=2"): ("compile.workers=2", "tiers=[roofline,compile]"),
    (TINY, "compile.xla=[default,default]"): ("compile.xla=default", "each bundle once"),
    (TINY, "tiers=compile", "compile.xla=[]"): ("compile.xla=[]", "at least one bundle"),
    (TINY, "tiers=compile", "compile.timeout_s=0"): ("compile.timeout_s=0", "a number above 0"),
    (TINY, "budget.minutes=nan"): ("budget.minutes=nan", "a number above 0"),
    (TINY, "budget.minutes=soon"): ("budget.minutes=soon", "a number"),
    (TINY, "budget.compile=0"): ("budget.compile=0", "a whole number from 1 to 1,000"),
    (TINY, "tiers=compile", "compile.cache="): ("compile.cache=", "not empty"),
    (TINY, "task=explain", "tiers=compile", "budget.compile=2"): ("budget.compile=2", "for task=tune"),
    (TINY, "tiers=null"): ("tiers=null", "a list"),
    (TINY, f"agents.memory_dir={__file__}"): ("agents.memory_dir=", "is a file"),
    (TINY, "agents=nobody"): ("agents=nobody", "auto, playbook, llm, policy, none"),
    (TINY, "search=randm"): ("search=randm: did you mean random?", "tpe, gp, cmaes"),
    (TINY, "output=jsn"): ("output=jsn", "plain", "did you mean json?"),
    (TINY, "budget.trials=-1"): ("budget.trials=-1", "a whole number from 0 to 10,000"),
    (TINY, "tiers=roofline", "ray.address=auto"): ("ray.address=auto", "only with the compile tier"),
    (TINY, "tiers=roofline", "ray.retries=3"): ("ray.retries=3", "only with the compile tier"),
    (TINY, "tiers=compile", "ray.retries=-1"): ("ray.retries=-1", "a whole number from 0 to 100"),
    (TINY, "tiers=compile", "ray.reserve_s=0"): ("ray.reserve_s=0", "a number above 0"),
    (TINY, "wrkload.seq_len=3"): ("wrkload.seq_len=3: did you mean workload.seq_len? no such key",),
    (TINY, "global_batch=3"): ("global_batch=3", "did you mean workload.global_batch?"),
    (TINY, "workload={seq: 3}"): ("workload.seq=3", "did you mean workload.seq_len?"),
    (TINY, "~stack=maxtext"): ("~stack=maxtext", "did you mean stack?"),
    (TINY, "hydra.run.dir=x"): ("hydra.run.dir=x", "no such key"),
    (TINY, "workload=null"): ("workload=null", "a mapping"),
    (TINY, "workload.global_batch=abc"): ("workload.global_batch=abc", "a whole number from 1 to 16,777,216"),
    (TINY, "workload.global_batch=nan"): ("workload.global_batch=nan", "a whole number from 1 to 16,777,216"),
    (TINY, "workload.global_batch=0"): ("workload.global_batch=0", "a whole number from 1 to 16,777,216"),
    (TINY, "workload.seq_len=-4096"): ("workload.seq_len=-4096", "a whole number from 1 to 16,777,216"),
    (TINY, "workload.seq_len=2.5"): ("workload.seq_len=2.5", "a whole number from 1 to 16,777,216"),
    (TINY, "workload.seq_len=1e30"): ("workload.seq_len=1e+30", "a whole number from 1 to 16,777,216"),
    (TINY, "workload.seq_len=true"): ("workload.seq_len=true", "a whole number from 1 to 16,777,216"),
    (TINY, f"seed={10**30}"): (f"seed={10**30}", "a whole number from 0 to 4,294,967,295"),
    (TINY, f"seed={'9' * 5000}"): ("seed=999", "(5,000 characters)"),
    (TINY, "seed=null"): ("seed=null", "a whole number"),
    (TINY, "top=0"): ("top=0", "from 1 to 1,000"),
    (TINY, "top=${oc.env:NO_SUCH_VARIABLE}"): ("NO_SUCH_VARIABLE",),
    (TINY, "hardware="): ("hardware=", "not empty"),
    (TINY, "hardware=[]"): ("hardware=[]", "at least one slice"),
    (TINY, "hardware=[v5p-8,v5p-8]"): ("hardware=v5p-8", "each slice once"),
    (TINY, "hardware=null"): ("hardware=null", "a list"),
    (TINY, "hardware=[[v5p-8]]"): ("hardware=", "a list of names"),
    (TINY, "hardware=v5p-128,h100x8"): ("hardware=v5p-128,h100x8", "[v5p-128,h100x8]"),
    (TINY, "hardware=[v5p"): ("hardware=[v5p", "cannot be read"),
    (TINY, "space.fix=3"): ("space.fix=3", "a mapping"),
    (TINY, "space.fix={tensor: {a: 1}}"): ("space.fix.tensor=", "a number, a word"),
    (TINY, "space.fix={1: 3}"): ("space.fix={1: 3}", "a mapping from names"),
    (TINY, "space.fix={true: 3}"): ("space.fix={True: 3}", "a mapping from names"),
    (TINY, "space.forbid=[{1: 3}]"): ("space.forbid={1: 3}", "a mapping from names"),
    (TINY, "workload={1: 3}"): ("workload={1: 3}", "a mapping from names"),
    (TINY, "space.forbid={a: 3}"): ("space.forbid=", "a list"),
    (TINY, "space.forbid=[3]"): ("space.forbid=[3]", "a list of mappings"),
    (TINY, "space.forbid=[{}]"): ("space.forbid[0]={}", "at least one axis or knob"),
    (TINY, "stack.axes.x=3"): ("cannot be composed",),
    (TINY, "run_dir="): ("run_dir=", "not empty"),
    (TINY, "run_dir=/dev/null/x"): ("run_dir=/dev/null/x", "/dev/null is a file"),
    (TINY, f"run_dir={'x' * 300}"): ("run_dir=xxx", "too long"),
    (TINY, f"run_dir={'x' * 20000}"): ("run_dir=xxx", "at most 10,000 characters"),
    (TINY, "run_dir=a\nb"): ("run_dir=",),
    (TINY, "plan='open quote"): ("plan='open quote", "quotes"),
    (TINY, "space.margin=nan"): ("space.margin=nan", "a share from 0 to 0.9"),
    (TINY, "space.margin=-0.1"): ("space.margin=-0.1", "a share from 0 to 0.9"),
    (TINY, "space=[null]"): ("space=", "a mapping"),
    (TINY, "hardware=[[1]]"): ("hardware", "a list of names"),
    (TINY, f"config_dir={'9' * 5000}"): ("config_dir=9", "an existing folder"),
    (TINY, "config_dir=/no/such"): ("config_dir=/no/such", "an existing folder"),
    (TINY, "--config-dir", "/no/such"): ("config_dir=/no/such", "an existing folder"),
    ("tiny",): ("tiny", "key=value", "+model=llama70b"),
    (TINY, "=3"): ("=3", "key=value"),
    (TINY, "-5"): ("-5", "key=value"),
    (TINY, "--frobnicate"): ("--frobnicate", "--help"),
    (TINY, "--cfg", "all"): ("--cfg", "job"),
    ("-m", "+model=tiny,foo"): ("model=foo", "llama70b"),
}


@pytest.mark.parametrize("argv", MISTAKES, ids=lambda argv: " ".join(argv)[:60])
def test_a_mistake_ends_in_one_line(command, argv: tuple[str, ...]) -> None:
    ended = command(*argv)
    start, *words = MISTAKES[argv]
    assert ended.status == 1
    assert ended.out == ""
    assert ended.err.count("\n") == 1
    assert len(ended.err) < 1500
    assert ended.err.startswith("asap-ray: ")
    assert start in ended.err
    assert [word for word in words if word not in ended.err] == []
    assert list(Path.cwd().iterdir()) == []


def test_no_model_lists_the_models(command) -> None:
    ended = command()
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith("asap-ray: +model=: a model is needed: one of ")
    assert {"llama70b", "deepseek_v3", "tiny", "+model.hf_config=PATH"} <= set(
        ended.err.replace(",", "").replace(";", "").split()
    )


def test_a_mistake_reaches_the_shell_without_a_traceback(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "asap_ray", TINY, "tiers=rofline"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert (
        ended.stderr
        == "asap-ray: tiers=rofline: did you mean roofline? allowed: auto, roofline, compile, run, command\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_asked_to_end_lets_go_of_what_it_holds(
    command, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    held = [True]

    def hold(config: Config) -> int:
        try:
            os.kill(os.getpid(), number)
            raise AssertionError("unreachable")
        finally:
            os.kill(os.getpid(), number)  # a second one does not cut this short
            held.clear()

    monkeypatch.setitem(sys.modules, "asap_ray.tasks.tune", types.SimpleNamespace(run=hold))
    before = signal.signal(number, signal.SIG_DFL)  # the tests themselves may run under nohup
    try:
        ended = command(TINY)
        assert (ended.status, ended.err, held) == (128 + number, f"asap-ray: ended by {number.name}\n", [])
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_tasks_models_slices_and_keys(command, flag: str) -> None:
    ended = command(flag)
    assert (ended.status, ended.err) == (0, "")
    for name in (
        "tune",
        "explain",
        "llama70b",
        "v5p-128",
        "v5p:8x8x8",
        "2xv5e-256",
        "h100",
        "maxtext",
        "megatron",
        "scheduler_memory",
        "budget.compile=null",
        "compile.timeout_s=900",
    ):
        assert name in ended.out
    assert "workload.seq_len=null" in ended.out
    assert "hardware=v5p-128" in ended.out


def test_version(command) -> None:
    assert command("--version").out.startswith("asap-ray ")


@pytest.mark.parametrize("words", [("+model=llama70b",), ("model=llama70b",), ("++model=llama70b",)])
def test_a_model_is_chosen_with_or_without_plus(configured, words: tuple[str, ...]) -> None:
    (config,) = configured(*words)
    assert config.task == "tune"
    assert config.model_name == "llama70b"
    assert (config.model["layers"], config.model["d_model"], config.stack_name) == (80, 8192, "maxtext")
    assert config.run_path == Path.cwd() / "runs" / "llama70b-v5p-128-maxtext"


@pytest.mark.parametrize("word", ["+model.hf_config", "model.hf_config"])
def test_a_model_is_read_from_a_file_as_typed(configured, word: str) -> None:
    (config,) = configured(f"{word}=/data/my models (new)/Llama=3/config.json")
    assert config.model == {"hf_config": "/data/my models (new)/Llama=3/config.json"}
    assert config.run_path.name.startswith("Llama_3-v5p-128-maxtext-")


def test_entries_of_a_named_model_can_be_changed(configured) -> None:
    (config,) = configured("+model=llama70b", "model.layers=40", "model.attention.kv_heads=64")
    assert (config.model["layers"], config.model["attention"]["kv_heads"], config.model["d_model"]) == (40, 64, 8192)


@pytest.mark.parametrize(
    ("word", "slices"),
    [
        ("hardware=v5p-256", ["v5p-256"]),
        ("hardware=v5p:8x8x8", ["v5p:8x8x8"]),
        ("hardware=h100:6x8", ["h100:6x8"]),
        ("+hardware=[v5p-128,2xv5e-256,h100x48]", ["v5p-128", "2xv5e-256", "h100x48"]),
        ("hardware.slices=[v6e-16, 'v5p:4x4x4']", ["v6e-16", "v5p:4x4x4"]),
    ],
)
def test_slices_are_text_or_a_list(configured, word: str, slices: list[str]) -> None:
    assert configured(TINY, word)[0].hardware.slices == slices


def test_nested_values_arrive_as_plain_data(configured) -> None:
    (config,) = configured(
        TINY,
        "workload.global_batch=512",
        "space.fix={tensor: 8, remat: full}",
        "space.forbid=[{pipeline: 2}, {fsdp: [4, 8]}]",
        "space.numerics=precision",
        "tiers=roofline",
        "stack=megatron",
        "task=explain",
        "plan=fsdp=16 tensor=4 layout=(x,y) remat=full",
    )
    assert config.workload.global_batch == 512
    assert config.space.fix == {"tensor": 8, "remat": "full"}
    assert config.space.forbid == [{"pipeline": 2}, {"fsdp": [4, 8]}]
    assert type(config.space.fix) is dict
    assert (config.space.numerics, config.tiers) == (["precision"], ["roofline"])
    assert (config.task, config.stack_name) == ("explain", "megatron")
    assert config.plan == "fsdp=16 tensor=4 layout=(x,y) remat=full"


@pytest.mark.parametrize(
    ("words", "compiles"),
    [
        ((), False),
        (("tiers=roofline",), False),
        (("tiers=[roofline,compile]",), True),
        (("tiers=compile",), True),
        (("budget.compile=2",), True),
        (("budget.minutes=0.5",), True),
    ],
)
def test_a_compiler_is_asked_where_it_is_named_or_has_a_budget(configured, words, compiles: bool) -> None:
    assert configured(TINY, *words)[0].compiles is compiles


def test_null_plan_stays_null(configured) -> None:
    assert configured(TINY, "plan=null")[0].plan is None


def test_the_users_own_folder_adds_models_and_stacks(configured, command, tmp_path: Path) -> None:
    for group, name in (("model", "mine"), ("stack", "house")):
        (tmp_path / "my conf" / group).mkdir(parents=True)
        (tmp_path / "my conf" / group / f"{name}.yaml").write_text("layers: 3\n")
    (config,) = configured("+model=mine", "stack=house", "--config-dir", "my conf")
    assert config.model == {"layers": 3, "name": "mine"}
    assert config.stack == {"layers": 3, "name": "house"}
    assert "house" in command("--config-dir", "my conf", "--help").out


def test_a_users_name_may_not_hide_ours(command, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tiny.yaml").write_text("layers: 3\n")
    ended = command(TINY, "--config-dir", str(tmp_path))
    assert ended.status == 1
    assert "model=tiny is built in" in ended.err


def test_multirun_runs_each_combination_in_its_own_folder(configured) -> None:
    configs = configured("-m", TINY, "hardware=v5p-128,h100x8", "workload.seq_len=1024,2048")
    seen = [(config.hardware.slices[0], config.workload.seq_len) for config in configs]
    assert seen == [("v5p-128", 1024), ("v5p-128", 2048), ("h100x8", 1024), ("h100x8", 2048)]
    assert len({config.run_path for config in configs}) == 4


def test_cfg_job_prints_the_configuration_and_runs_nothing(command) -> None:
    ended = command(TINY, "hardware=h100x8", "--cfg", "job")
    printed = yaml.safe_load(ended.out)
    assert printed["hardware"] == {"slices": ["h100x8"]}
    assert json.dumps(printed)
    assert list(Path.cwd().iterdir()) == []


def test_yaml_that_stands_for_more_than_memory_holds_is_refused(command, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    grown = (f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in itertools.pairwise("abcdefghij"))
    lines = ["a: &a [x, x]", *grown]
    (tmp_path / "model" / "mine.yaml").write_text("\n".join(lines))
    ended = command("+model=mine", "--config-dir", str(tmp_path))
    assert ended.status == 1
    assert "mine.yaml: a settings file without YAML aliases" in ended.err


def test_help_says_which_model_a_short_name_is(command) -> None:
    assert "llama405b (= llama3_1_405b)" in command("--help").out


def test_a_project_may_have_its_settings_at_its_root(configured, tmp_path: Path) -> None:
    """What lies deeper in it is not settings: other YAML files are none of ours, and may be as they like."""
    (tmp_path / "stack").mkdir()
    stack = (data_dir("conf") / "stack" / "ours.yaml").read_text()
    (tmp_path / "stack" / "mine.yaml").write_text(stack.replace("name: ours", "name: mine", 1))
    (tmp_path / "charts" / "templates").mkdir(parents=True)
    (tmp_path / "charts" / "templates" / "x.yaml").write_text("a: &a [1]\nb: *a\n")
    (config,) = configured(TINY, "stack=mine", "--config-dir", str(tmp_path))
    assert config.stack_name == "mine"
