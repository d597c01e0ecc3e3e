"""Any words at all give a configuration or one line; and what a run directory is called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asap_ray.errors import AsapError, ConfigError
from asap_ray.overrides import all_keys, configure

TINY = "+model=tiny"
ENTRIES = ("model.hf_config", "model.layers", "model.attention", "stack.axes", "stack.name", "space.fix.tensor")
NASTY = (
    *("", "???", "'???'", "[???]", "{a: ???}", "[{a: ???}]", "${oc.decode:'???'}", "{tensor: ???}", "null", "[null]"),
    *(
        "{}",
        "[]",
        "[[]]",
        "[{}]",
        "[{a: {b: 1}}]",
        "{1: 2, a: 3}",
        "[{1: 2, a: 3}]",
        "{a: [{1: 2, b: 3}]}",
        "nan",
        "inf",
    ),
    *("-1", "1e400", "true", "${seed}", "${nope}", "${oc.env:NO_SUCH}", "${", "${}", "${.}", "${..}", "${model}"),
    *("\udcff", "\x00", "\n", "'", '"', "a b", "[a", "range(1,3)", "glob(*)", "int(3)", "a@b", "~nobody", "/dev/null"),
    *("..", "\\", "$", "9" * 5000, "x" * 300, "{hf_config: null}", "'a'b", "a=b", "{a:}", "#", "!!python/none"),
)


def outcome(*words: str) -> str:
    """The one line of an error, empty where there is none; anything but an error of ours goes through."""
    try:
        configure(words)
    except AsapError as error:
        return " ".join(str(error).split())
    return ""


@settings(max_examples=150)
@given(
    key=st.sampled_from(["hardware", "scenario", "x", *ENTRIES, *all_keys()]),
    value=st.sampled_from(NASTY) | st.text(max_size=20),
    sign=st.sampled_from(["", "+", "++", "~"]),
    model=st.sampled_from([(TINY,), ()]),
)
@example(key="run_dir", value="~nobody", sign="", model=(TINY,))
@example(key="budget", value="{minutes: " + "9" * 400 + "}", sign="", model=(TINY,))
@example(key="space.margin", value="9" * 400, sign="", model=(TINY,))
@example(key="baseline", value="${oc.decode:'???'}", sign="", model=(TINY,))
@example(key="model.hf_config", value="${seed}", sign="+", model=())
@example(key="space.forbid", value="[{a: [{1: 2, b: 3}]}]", sign="", model=(TINY,))
def test_no_word_gives_anything_but_a_configuration_or_one_line(
    key: str, value: str, sign: str, model: Sequence[str]
) -> None:
    outcome(*model, f"{sign}{key}={value}")


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("task=???", "task=???: allowed: tune, explain"),
        ("output=???", "output=???: allowed: auto, rich, plain, json"),
        ("tiers=???", "tiers=???: allowed: auto, roofline"),
        ("agents=???", "agents=???: allowed: auto, playbook, llm, policy, none"),
        ("search=???", "search=???: allowed: random, tpe, gp, cmaes, nsga2, qmc, grid"),
        ("hardware=???", "hardware=???: a list of names: [a,b]"),
        ("hardware=[v5p-8,???]", "hardware[1]=???: a list of names: [a,b]"),
        ("plan=???", "plan=???: text, or null"),
        ("baseline=???", "baseline=???: text, or null"),
        ("run_dir=???", "run_dir=???: text, or null"),
        ("calibrate.folds=???", "calibrate.folds=???: true or false"),
        ("seed=???", "seed=???: a whole number from 0 to 4,294,967,295"),
        ("top=???", "top=???: a whole number from 1 to 1,000"),
        ("workload=???", "workload=???: a mapping: {key: value}"),
        ("workload.seq_len=???", "workload.seq_len=???: a whole number from 1 to 16,777,216, or null"),
        ("workload.optimizer=???", "workload.optimizer=???: allowed: adamw"),
        ("space.fix=???", "space.fix=???: a mapping: {key: value}"),
        ("space.fix.tensor=???", "space.fix.tensor=???: a value: a number, a word, or a list of them"),
        ("model.layers=???", "model.layers=???: a value: a number, a word, or a list of them"),
        ("model=???", "model=???: allowed: "),
        ("stack=???", "stack=???: allowed: "),
    ],
)
def test_the_marker_of_what_is_missing_is_no_value(word: str, wanted: str) -> None:
    words = (word,) if word.startswith("model=") else (TINY, word)
    assert outcome(*words).startswith(wanted)


def test_a_model_file_is_a_path() -> None:
    assert outcome("+model.hf_config=null") == "+model.hf_config=null: the path of a Hugging Face config.json"


DIFFERENT = (
    *((), ("workload.seq_len=512",), ("workload.seq_len=1024",), ("workload.precision=fp8",), ("seed=1",)),
    *(("space.fix={tensor: 2}",), ("space.fix={tensor: 4}",), ("space.forbid=[{tensor: 2}]",)),
    *(("space.numerics=precision",), ("plan=tensor=2",), ("baseline=tensor=2",), ("model.layers=4",)),
    *(("model.attention.heads=4",), ("stack.name=other",), ("stack=megatron",), ("hardware=v5p-8",)),
)


def test_runs_that_differ_in_what_is_found_lie_apart() -> None:
    paths = [configure((TINY, *words)).run_path for words in DIFFERENT]
    assert len(set(paths)) == len(paths)
    assert paths[0] == Path.cwd() / "runs" / "tiny-v5p-128-maxtext"
    assert {path.parent for path in paths} == {paths[0].parent}


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (("task=explain", "top=3", "output=json", "seed=0", "tiers=roofline"), ()),
        (("space.fix={data: 2, tensor: 2}",), ("space.fix={tensor: 2, data: 2}",)),
        (("space.fix.tensor=2",), ("++space.fix={tensor: 2}",)),
        (("space.forbid=[{tensor: 2}, {data: 2}]",), ("space.forbid=[{data: 2}, {tensor: 2}]",)),
        (("+model.layers=4", "seed=3"), ("seed=3", "model.layers=4")),
    ],
)
def test_one_search_has_one_folder_however_it_is_written(words: tuple[str, ...], same: tuple[str, ...]) -> None:
    assert configure((TINY, *words)).run_path == configure((TINY, *same)).run_path


def test_a_run_directory_keeps_its_name_from_one_version_to_the_next() -> None:
    # sha256 of {"seed": 1} as JSON: printf '{"seed": 1}' | sha256sum
    assert configure((TINY, "seed=1")).run_path.name == "tiny-v5p-128-maxtext-a4bbadc1"


def test_models_of_one_name_in_two_folders_lie_apart() -> None:
    paths = {configure((f"+model.hf_config={place}/llama/config.json",)).run_path for place in ("a", "b")}
    assert len(paths) == 2


def test_long_names_that_start_alike_lie_apart() -> None:
    slices = [f"v5p-{2**n}" for n in range(3, 14)] * 2
    named = (f"+hardware=[{','.join(dict.fromkeys([*slices, *(f'2x{s}' for s in slices), last]))}]" for last in "xy")
    first, second = (configure((TINY, word)).run_path.name for word in named)
    assert first != second
    assert len(first) < 255


def test_calibrations_that_differ_lie_apart(tmp_path) -> None:
    (tmp_path / "calibration").mkdir()
    mine = "calibrate.tables=[mine.csv]"
    given = [(), (mine,), ("calibrate.tables=[other.csv]",), (mine, "calibrate.folds=false"), ("hardware=local",)]
    given.append((mine, f"config_dir={tmp_path}"))
    assert len({configure(("task=calibrate", *words)).run_path for words in given}) == len(given)
    assert (
        configure(("task=calibrate", "calibrate.tables=mine.csv")).run_path
        == configure(("task=calibrate", mine)).run_path
    )


@pytest.mark.parametrize("key", ["validate.tables", "calibrate.tables"])
@pytest.mark.parametrize(("given", "told"), [("{a: 1}", "a list: [a,b]"), ("[]", "at least one table")])
def test_tables_are_a_list_of_at_least_one(key: str, given: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configure((f"task={key.split('.')[0]}", f"{key}={given}"))
    assert str(caught.value).startswith(f"{key}=")
    assert told in str(caught.value)


def test_a_run_directory_that_cannot_be_written_to_is_told_before_any_work(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(ConfigError) as caught:
        configure((TINY, f"run_dir={tmp_path}/deep/run"))
    assert str(caught.value) == f"run_dir={tmp_path}/deep/run: a folder, but {tmp_path} cannot be written to"
