"""What only the physics, the space or a file can find wrong: one line on stderr, nothing on stdout, status 1."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from asap_ray.errors import ConfigError
from asap_ray.hardware import parse_slice
from asap_ray.narrowing import fixed
from asap_ray.physics.calibration import calibration_from_mapping, calibration_of, calibrations_from_mappings
from asap_ray.plan import Plan
from asap_ray.settings import load_group
from asap_ray.space import Space
from asap_ray.tasks.nothing import what_each_bars
from asap_ray.tiers.roofline import Roofline
from tests.problems import CHIPS, all_plans, make_problem

TINY = ("+model=tiny", "hardware=v5e-4")
COMPILED = (*TINY, "tiers=[roofline,compile]")
LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 512,
}


def one_line(ended: Any) -> str:
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1), ended
    assert "Traceback" not in ended.err
    return ended.err.removeprefix("asap-ray: ").rstrip("\n")


MISTAKES = {
    "unknown slice": (("+model=tiny", "hardware=v5p-129"), ("hardware=v5p-129", "did you mean v5p-128?")),
    "unknown chip": (("+model=tiny", "hardware=v5q-128"), ("hardware=v5q-128", "did you mean v5p-128?")),
    "a slice twice": (("+model=tiny", "hardware=[v5p-128,v5p:4x4x4]"), ("hardware=v5p:4x4x4", "each slice once")),
    "unknown axis": ((*TINY, "space.fix={tensr: 2}"), ("space.fix=tensr", "pipeline", "did you mean tensor?")),
    "unknown knob": ((*TINY, "space.forbid=[{remt: full}]"), ("space.forbid[0]=remt", "did you mean remat?")),
    "unknown policy": ((*TINY, "space.fix={remat: ful}"), ("space.fix.remat=ful", "did you mean full?")),
    "a size of an axis": ((*TINY, "space.fix={tensor: -1}"), ("space.fix.tensor=-1", "a whole number")),
    "no such size": ((*TINY, "space.fix={tensor: 3}"), ("space.fix.tensor=3", "all else as it is: 1, 2, 4")),
    "one pin too many": (
        (*TINY, "space.fix={tensor: 2, fsdp: 4}"),
        ("space.fix.tensor=2", "no plan of tiny on v5e-4 is legal for maxtext", "allowed with all else as it is: 1"),
    ),
    "a policy and a kernel": (
        ("+model=tiny", "hardware=h100x4", "stack=megatron", "space.fix={attention: unfused, context: 2}"),
        ("space.fix.attention=unfused", "allowed with all else as it is: flash"),
    ),
    "pins that are all wrong": (
        (*TINY, "space.fix={tensor: 3, fsdp: 5}"),
        ("space.fix={'tensor': 3, 'fsdp': 5}", "without it some are"),
    ),
    "everything forbidden": (
        (*TINY, "space.forbid=[{micro_batch: '>=1'}]"),
        ("space.forbid[0]={'micro_batch': '>=1'}", "without it some are"),
    ),
    "batch": (
        ("+model=tiny", "hardware=v5e-16", "workload.global_batch=33"),
        ("workload.global_batch=33", "not divisible over the 16 devices", "32 or 48"),
    ),
    "a stack without a plan": (
        ("+model=tiny", "hardware=v5e-4", "stack=nanotron", "workload.seq_len=127", "workload.global_batch=2",
         "space.fix={context: 4}"),
        ("space.fix.context=4", "legal for nanotron", "allowed with all else as it is: 1"),
    ),
    "precision": ((*TINY, "workload.precision=fp7"), ("workload.precision=fp7", "bf16", "did you mean fp8?")),
    "precision of a chip": (
        ("+model=tiny", "hardware=v4-8", "workload.precision=fp8"),
        ("workload.precision=fp8", "maxtext on v4 has bf16"),
    ),
    "numerics": ((*TINY, "space.numerics=[precison]"), ("space.numerics=precison", "did you mean precision?")),
    "NaN in a model": ((*TINY, "model.d_model=nan"), ("model.d_model=nan",)),
    "zero in a model": ((*TINY, "model.layers=0"), ("model.layers=0",)),
    "negative in a model": ((*TINY, "model.attention.heads=-8"), ("model.attention.heads=-8",)),
    "heads": ((*TINY, "model.attention.kv_heads=3"), ("model.attention.kv_heads=3", "8")),
    "entry of a model": ((*TINY, "model.layrs=3"), ("model.layrs", "did you mean layers?")),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_ends_in_one_line(command, case: str) -> None:
    words, expected = MISTAKES[case]
    line = one_line(command(*words, "run_dir=run"))
    assert [word for word in expected if word not in line] == [], line


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ("does not exist",)),
        ("", ("not JSON",)),
        ("{", ("not JSON",)),
        ("\x00\x01", ("not JSON",)),
        ("[1]", ("not a JSON object",)),
        ("{}", ("model_type", "missing")),
        (json.dumps({**LLAMA, "model_type": "lama"}), ("'lama'", "llama", "mistral")),
        (json.dumps({**LLAMA, "hidden_size": 0}), ("hidden_size=0", "a whole number from 1")),
        (json.dumps({**LLAMA, "vocab_size": -512}), ("vocab_size=-512", "a whole number from 1")),
        (json.dumps({**LLAMA, "num_hidden_layers": float("nan")}), ("num_hidden_layers=nan", "a whole number from 1")),
        (json.dumps({**LLAMA, "num_attention_heads": 7}), ("num_attention_heads=7",)),
    ],
)
def test_a_config_json_that_cannot_be_used_ends_in_one_line(
    command, content: str | None, words: tuple[str, ...]
) -> None:
    if content is not None:
        Path("config.json").write_text(content)
    line = one_line(command("+model.hf_config=config.json", "hardware=v5e-4", "run_dir=run"))
    assert line.startswith("model.hf_config=config.json: ")
    assert [word for word in words if word not in line] == [], line
    assert not Path("run").exists()


def fits(model: str, slice_: str, stack: str, batch: int, seq_len: int) -> bool:
    problem = make_problem(slice_, stack, model, batch=batch, seq_len=seq_len)
    calibrations = calibrations_from_mappings(load_group("calibration"))
    calibration = calibration_of(problem.slice.chip, problem.stack.name, calibrations)
    tier = Roofline(problem=problem, calibration=calibration)
    return bool(tier.sweep(Space(problem=problem), top=1).ranked)


@pytest.mark.parametrize(
    ("model", "slice_", "stack", "batch", "seq_len"),
    [
        ("llama2_70b", "v5p-8", "maxtext", 1024, 4096),
        ("llama2_7b", "v5e-4", "maxtext", 256, 4096),
        ("llama2_70b", "h100x8", "megatron", 256, 4096),
    ],
)
def test_a_slice_that_is_too_small_tells_the_bytes_and_the_smallest_that_fits(
    command, model: str, slice_: str, stack: str, batch: int, seq_len: int
) -> None:
    shape = (f"workload.global_batch={batch}", f"workload.seq_len={seq_len}")
    line = one_line(command(f"+model={model}", f"hardware={slice_}", f"stack={stack}", *shape, "run_dir=run"))
    assert line.startswith(f"hardware={slice_}: no plan of ")
    assert re.search(r"needs [\d.]+ GB a device where [\d.]+ GB are allowed, [\d,]+ bytes are missing; ", line)
    named = line.rpartition(" slice that fits is ")[2]
    assert fits(model, named, stack, batch, seq_len)
    for smaller in sold_between(slice_, named):
        assert not fits(model, smaller, stack, batch, seq_len), smaller


def sold_between(low: str, high: str) -> list[str]:
    """Every name of a size that parses between two, both left out but the first."""
    chip, low_count, high_count = low.rstrip("0123456789"), *(int(re.split("[-x]", name)[-1]) for name in (low, high))
    found = []
    for count in range(low_count, high_count):
        with suppress(ConfigError):
            found.append(parse_slice(f"{chip}{count}", CHIPS).name)
    assert low in found
    return found


def test_a_size_between_the_rungs_may_be_the_smallest(command) -> None:
    # Seven chips are on no rung: 1, 2, 3, 4, 6 and 8 are.
    words = ("+model=llama2_13b", "stack=torchtitan", "workload.global_batch=840", "workload.seq_len=4096")
    line = one_line(command(*words, "hardware=a100-40x1", "space.margin=0", "run_dir=run"))
    named = line.rpartition(" slice that fits is ")[2]
    tried = [f"a100-40x{n}" for n in range(1, 9)]
    first = next(name for name in tried if fits("llama2_13b", name, "torchtitan", 840, 4096))
    assert named == first


def test_a_pin_under_which_nothing_fits_is_named_with_what_would(command) -> None:
    # One chip in four must hold all weights: nothing fits until data gives way, or the slice grows under it.
    shape = {"batch": 256, "seq_len": 4096}
    words = ("+model=llama3_2_3b", "hardware=v5e-4", "workload.global_batch=256", "workload.seq_len=4096")
    line = one_line(command(*words, "space.fix={data: 4}", "run_dir=run"))
    assert line.startswith("hardware=v5e-4: no plan of llama3_2_3b fits with space.fix.data=4: ")
    allowed = re.search(r"; space\.fix\.data allowed with all else as it is: ([\d, ]+); ", line)
    assert allowed
    named = re.search(r"; the smallest v5e slice that fits so is (\S+)$", line)
    assert named
    for data in (1, 2, 4):
        assert pinned_fits("llama3_2_3b", "v5e-4", {"data": data}, **shape) == (str(data) in allowed[1].split(", "))
    assert pinned_fits("llama3_2_3b", named[1], {"data": 4}, **shape)
    for smaller in sold_between("v5e-4", named[1]):
        assert not pinned_fits("llama3_2_3b", smaller, {"data": 4}, **shape)


def pinned_fits(model: str, slice_: str, pins: dict[str, object], batch: int, seq_len: int) -> bool:
    problem = make_problem(slice_, "maxtext", model, batch=batch, seq_len=seq_len)
    tier = Roofline(problem=problem, calibration=calibration_from_mapping("tpu", load_group("calibration")["tpu"]))
    return bool(tier.sweep(Space(problem=problem, narrowings=fixed(problem, pins)), top=1).ranked)


@pytest.mark.parametrize("pins", [{"tensor": 3}, {"tensor": 2, "fsdp": 4}, {"remat": "full", "data": 3, "fsdp": 2}])
def test_what_each_pin_bars_is_found_in_one_pass(pins: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem("v5e-4", "maxtext", "tiny", batch=32, seq_len=128)
    space = Space(problem=problem, narrowings=fixed(problem, pins))
    everything = all_plans(Space(problem=problem))
    expected = []
    for name in pins:
        rest = {other: value for other, value in pins.items() if other != name}
        kept = [plan for plan in everything if all(value_of(plan, other) == value for other, value in rest.items())]
        expected.append(", ".join(map(str, sorted({value_of(plan, name) for plan in kept}, key=str))))
    passes, chunks = [], Space.chunks
    monkeypatch.setattr(Space, "chunks", lambda *given: passes.append(1) or chunks(*given))
    assert what_each_bars(space) == expected
    assert len(passes) == 1


def value_of(plan: Plan, name: str) -> object:
    return plan.axes[name] if name in plan.axes else getattr(plan, name)


def test_the_bytes_that_are_missing_are_those_of_the_leanest_plan(command) -> None:
    problem = make_problem("v5e-4", "maxtext", "llama2_7b", batch=256, seq_len=4096)
    tier = Roofline(problem=problem, calibration=calibration_from_mapping("tpu", load_group("calibration")["tpu"]))
    leanest = min(
        float(rows.min()) for rows in (_memory(tier, problem, chunk) for chunk in Space(problem=problem).chunks())
    )
    line = one_line(
        command(
            "+model=llama2_7b", "hardware=v5e-4", "workload.global_batch=256", "workload.seq_len=4096", "run_dir=run"
        )
    )
    allowed = 0.95 * problem.slice.chip.usable_hbm_bytes  # space.margin
    assert f" {leanest - allowed:,.0f} bytes are missing" in line


def _memory(tier: Roofline, problem: Any, chunk: Any) -> Any:
    from asap_ray.physics.roofline import Pricer

    return Pricer(problem, tier.calibration).price(chunk).hbm_bytes


def test_a_users_own_chip_of_no_known_kind_ends_in_one_line(command) -> None:
    chip = next(iter(Path(__file__).parents[2].glob("conf/hardware/v5e.yaml"))).read_text()
    Path("my/hardware").mkdir(parents=True)
    text = re.sub(r"(?m)^kind:.*", "kind: npu", re.sub(r"(?m)^name:.*", "name: mychip", chip))
    Path("my/hardware/mychip.yaml").write_text(re.sub(r"(?m)^aliases:.*", "", text))
    line = one_line(command("+model=tiny", "hardware=mychip:1x1", "--config-dir", "my", "run_dir=run"))
    assert "kind=npu" in line


@pytest.mark.parametrize(
    ("name", "aliases", "taken"),
    [("h100", "[]", "h100"), ("H100", "[]", "H100"), ("mine", "[v5litepod]", "v5litepod"), ("mi300", "[]", "mi300")],
)
def test_a_users_own_chip_cannot_take_the_name_of_ours(command, name: str, aliases: str, taken: str) -> None:
    Path("my/hardware").mkdir(parents=True)
    text = (Path(__file__).parents[2] / "conf/hardware/v5e.yaml").read_text()
    text = re.sub(r"(?m)^aliases:.*", f"aliases: {aliases}", re.sub(r"(?m)^name:.*", f"name: {name}", text))
    Path("my/hardware/mine.yaml").write_text(text)
    line = one_line(command("+model=tiny", "hardware=h100x4", "--config-dir", "my", "run_dir=run"))
    assert line.startswith(f"hardware.mine={taken}: allowed: a name and aliases of its own; ")
    assert line.endswith("is built in")


@pytest.mark.parametrize("group", ["hardware", "model", "stack"])
@pytest.mark.parametrize("text", ["a: [", "- 1", "name: {a: b}\n", "", "\x00"], ids=range(5))
def test_a_users_own_settings_that_are_broken_end_in_one_line(command, group: str, text: str) -> None:
    Path(f"my/{group}").mkdir(parents=True)
    Path(f"my/{group}/mine.yaml").write_text(text)
    word = {"hardware": "hardware=v5e-4", "model": "+model=mine", "stack": "stack=mine"}[group]
    words = (word,) if group == "model" else ("+model=tiny", word)
    one_line(command(*words, "--config-dir", "my", "run_dir=run"))


ADDRESSES = ("foo", "127.0.0.1:99999", "127.0.0.1:9", "http://127.0.0.1:9", "a..b:80", ":1", "x:²")


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_without_a_cluster_ends_before_anything_is_priced(command, pretend, address: str) -> None:
    line = one_line(command(*COMPILED, f"ray.address='{address}'", "run_dir=run"))
    assert line.startswith(f"ray.address={address}: "), line
    assert "HOST:PORT" in line
    assert not Path("run").exists()


@pytest.mark.parametrize("folder", ["/proc/asap_ray", "file", "file/below"])
def test_a_cache_that_cannot_be_written_to_is_named_before_anything_is_compiled(command, pretend, folder: str) -> None:
    Path("file").touch()
    line = one_line(command(*COMPILED, f"compile.cache={folder}", "run_dir=run"))
    assert line.startswith(f"compile.cache={folder}: a folder that can be written to"), line
    assert not Path("run").exists()


@pytest.mark.parametrize(
    "lines",
    [
        '{"a": 1}',
        "garbage",
        '{"kind": "start"}',
        '{"kind": "start", "workload": {}, "config": 3}',
        '{"kind": "start", "task": "tune", "command": "", "at": "", "workload": {"architecture": {}}}',
    ],
)
def test_events_that_something_else_has_written_end_in_one_line(command, lines: str) -> None:
    Path("run").mkdir()
    Path("run/events.jsonl").write_text(f"{lines}\n")
    assert one_line(command("task=show", "run_dir=run")).startswith("run_dir=")


@pytest.mark.parametrize("change", [("elapsed_s", "took_s"), ("roofline", "prior"), ("interval_s", "between_s")])
def test_trials_that_another_version_has_written_end_in_one_line(command, pretend, change: tuple[str, str]) -> None:
    words = (*COMPILED, "budget.compile=1", "run_dir=run")
    assert command(*words).status == 0
    path = Path("run/events.jsonl")
    path.write_text(path.read_text().replace(*(f'"{name}":' for name in change)))
    for line in (one_line(command(*words)), one_line(command("task=show", "run_dir=run"))):
        assert line.startswith("run_dir=")
        assert f"'{change[0]}'" in line, line


def test_what_another_program_has_written_is_no_run_to_go_on_with(command: Any) -> None:
    Path("run").mkdir()
    Path("run/events.jsonl").write_bytes(b"\x00\xff garbage\n{}\n")
    line = one_line(command("+model=tiny", "hardware=v5e-4", "tiers=roofline", "run_dir=run"))
    assert "events.jsonl this version has written (line 1 is no event)" in line
    assert [path.name for path in Path("run").iterdir()] == ["events.jsonl"]
