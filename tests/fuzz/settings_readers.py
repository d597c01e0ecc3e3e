"""Ways in for settings: words of the command line, and files of a user's own `config_dir` and knowledge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from asap_ray.architecture import architecture_from_mapping
from asap_ray.chip import chip_from_mapping
from asap_ray.hardware import parse_slice
from asap_ray.knowledge import card_from_mapping
from asap_ray.overrides import all_keys, configure, jobs
from asap_ray.physics.calibration import calibrations_from_mappings
from asap_ray.plan import Plan
from asap_ray.recipe import Recipe
from asap_ray.settings import _check_files, data_dir, load_group, read_settings, setting_files
from asap_ray.stack import stack_from_mapping
from asap_ray.tasks.bundles import bundle_from_mapping
from asap_ray.tasks.night.matrix import cells_from_mapping
from asap_ray.tasks.scenario import scenario_from_mapping
from asap_ray.tasks.written import baseline_line
from asap_ray.tiers.templates import template_from_mapping
from tests.fuzz import bombs
from tests.fuzz.mutations import WORDS, as_yaml, lines, mappings, torn
from tests.fuzz.places import folder, placed
from tests.fuzz.running import Reader

CHIPS = {name: chip_from_mapping(given) for name, given in load_group("hardware").items()}
CALIBRATIONS = load_group("calibration")
LINES = (
    "data=2 fsdp=4x2@2.2 tensor=2 micro_batch=8 accumulation=1 remat=minimal_with_context",
    "pipeline=4 virtual=2 schedule=interleaved zero=1 precision=fp8 attention=unfused sequence_parallel=true",
)
COMMANDS = (
    "+model=tiny hardware=v5e-4 stack=maxtext tiers=[roofline,compile] agents=auto seed=0 run_dir=run output=json",
    "task=compare compare.seeds=2 compare.tables=[a.parquet,b.csv] compare.methods=[random,tpe] search=tpe",
    "+scenario=asap_compute space.fix={tensor: 8} space.forbid=[{pipeline: 2},{remat: [full,none]}] budget.trials=9",
    "+model=tiny hardware=local command.args=[a,--b] llm.prices={m: [1,2]} llm.base_url=http://localhost:8000 plan=x",
    "task=nightly nightly=small nightly.webhook_hosts=[a.example] budget.minutes=5 config_dir=. ray.address=auto",
    "task=launch launch.target=slurm launch.schedule=0 1 * * * launch.options=[--x=1] +model=tiny hardware=h100x8",
)
VALUES = (
    *("1", "-1", "0.5", "[]", "{}", "[a,b]", "{a: 1}", "[[1]]", "null", "true", "a,b", "1,2", "???", "[a", "{a", "a}"),
    *("'", '"', "'a", "\\", "${model}", "${oc.env:HOME}", "${now:%Y}", "range(1,1000000000)", "glob(*)", "choice(a,b)"),
    *(
        "interval(0,1)",
        "sort(3,1)",
        "int(9)",
        "json_str({})",
        "str(1)",
        "1e400",
        "9" * 5000,
        "[" * 500,
        "{a: " * 300,
        "a=b",
    ),
)


def readers() -> Iterator[Reader]:
    """All of them."""
    yield Reader(
        name="command line",
        read=_command,
        inputs=_words(),
        bombs=(
            *(
                ["+model=tiny", f"space.fix={text}"]
                for text in ("[" * 5000, "{a: " * 2000, "9" * 9000, "[1" + ",1" * 4000)
            ),
            ["seed=range(1,10000000000)"],
            ["seed=1,2,3", "budget.trials=range(1,1000000)", "search.share=range(1,1000000)"],
            ["x" * 10_000_000],
            [f"+model={'x' * 9000}"],
        ),
        share=0.15,
    )
    yield Reader(
        name="slice names",
        read=lambda text: parse_slice(text, CHIPS),
        inputs=_text(("v5p-128", "2xv5e-16", "h100x8", "v5p:2x2x4")),
        bombs=(
            "v5p-" + "9" * 100_000,
            "h100x" + "9" * 5000,
            "v5p:" + "x".join(["9"] * 10_000),
            "9" * 100_000 + "xv5e-4",
        ),
    )
    yield Reader(
        name="plan lines",
        read=Plan.parse,
        inputs=_text(LINES, " "),
        bombs=("data=" + "9" * 100_000, "data=2@" + ".".join(["2"] * 100_000), " ".join(["data=2"] * 100_000)),
    )
    yield Reader(
        name="recipe lines",
        own=(ValueError,),
        read=Recipe.parse,
        inputs=_text(("xla=default", "xla=a+b fp8=true"), " "),
    )
    yield Reader(
        name="baseline files",
        read=placed("mine.txt", lambda path: baseline_line(str(path))),
        inputs=torn(lines((*LINES, '{"best": {"line": "data=2"}}', '{"line": "fsdp=4"}'))),
        bombs=(*bombs.JSON, *bombs.TEXT),
    )
    yield from _groups()
    for group, share in (("model", 0.1), ("stack", 0.5)):
        yield Reader(
            name=f"files of config_dir/{group}",
            read=placed(f"own_{group}/{group}/mine.yaml", partial(_own, group)),
            inputs=torn(lines(_texts(group))) | torn(mappings(list(load_group(group).values())).map(as_yaml)),
            bombs=bombs.YAML,
            share=share,
        )


def _own(group: str, path: Path) -> None:
    _check_files.cache_clear()
    read_settings(setting_files(group, str(path.parents[1]))["mine"])


def _groups() -> Iterator[Reader]:
    groups: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
        "model": architecture_from_mapping,
        "hardware": chip_from_mapping,
        "stack": stack_from_mapping,
        "command": lambda given: template_from_mapping("mine", given),
        "xla": lambda given: bundle_from_mapping("mine", given),
        "nightly": lambda given: [each.name for each in cells_from_mapping("mine", given)],
        "scenario": scenario_from_mapping,
        "calibration": lambda given: calibrations_from_mappings({**CALIBRATIONS, "mine": given}),
    }
    for group, read in groups.items():
        yield Reader(name=f"conf/{group}", read=read, inputs=mappings(_samples(group)))
    cards = [read_settings(path) for path in sorted((data_dir("knowledge") / "cards").glob("*.yaml"))]
    yield Reader(name="cards", read=lambda given: card_from_mapping("mine", given), inputs=mappings(cards))


def _samples(group: str) -> list[dict[str, Any]]:
    """What is read of the carried files of a group; of a scenario Hydra hands on one part."""
    found = load_group(group)
    return [{"name": name, **given["scenario"]} if group == "scenario" else given for name, given in found.items()]


def _texts(group: str) -> list[str]:
    return [path.read_text() for path in setting_files(group).values()]


def _text(samples: tuple[str, ...], sep: str = "\n") -> st.SearchStrategy[str]:
    return torn(lines(samples, sep)).map(lambda data: data.decode("utf-8", "surrogateescape"))


def _command(words: list[str]) -> object:
    for job in jobs(words, multirun=False):
        configure([*job, f"run_dir={folder() / 'run'}"] if not any("run_dir" in word for word in job) else job)
    return None


@st.composite
def _words(draw: Any) -> list[str]:
    """A command with a few words of any key beside its own."""
    keys = sorted(all_keys())
    found = _split(draw(st.sampled_from(COMMANDS)))
    for _ in range(draw(st.integers(0, 3))):
        key = draw(
            st.sampled_from(
                (
                    *keys,
                    "+model",
                    "hardware",
                    "model.x",
                    "space.fix.tensor",
                    "llm.prices.m",
                    "x",
                    "~seed",
                    "hydra.run.dir",
                )
            )
        )
        sign = draw(st.sampled_from(("", "", "+", "++")))
        found.append(f"{sign}{key}={draw(st.sampled_from((*VALUES, *WORDS)))}")
    return [word for word in found if "\x00" not in word]


def _split(command: str) -> list[str]:
    """The words of a command, as a shell hands them on: values may have spaces."""
    found: list[str] = []
    for word in command.split(" "):
        named = "=" in word and word.partition("=")[0].replace(".", "").replace("_", "").lstrip("+").isalpha()
        if named or not found:
            found.append(word)
        else:
            found[-1] += f" {word}"
    return found
