"""Whatever a file holds, it is a job, none, or one printable line; each project's file is told by its names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asap_ray.errors import ConfigError
from asap_ray.interchange.exchange import Foreign
from asap_ray.interchange.projects import read_job, writers_of
from asap_ray.settings import load_group

NAMES = (
    *("ici_fsdp_parallelism", "per_device_batch_size", "remat_policy", "model_name", "base_emb_dim", "attention"),
    *("tensor_model_parallel_size", "micro_batch_size", "num_layers", "model", "train", "parallelism", "training"),
    *("language_model", "model_parallel", "dcn_data_parallelism", "moe_layer_freq", "global_parameter_scale"),
)
VALUES = st.recursive(
    st.one_of(
        st.integers(-2, 2**40),
        st.floats(allow_nan=True),
        st.booleans(),
        st.none(),
        st.text(max_size=8),
        st.sampled_from(["full", "custom", "-1", "0", "[0]*3+[1]*2", "\x1b[31m", "llama2-7b", "default", "1e400"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("projects")


def outcome(path: Path) -> Foreign | None:
    try:
        return read_job("baseline", path)
    except ConfigError as error:
        told = str(error)
    assert told.isprintable()
    assert len(told) < 1500
    return None


@settings(max_examples=150, deadline=None)
@given(values=st.dictionaries(st.sampled_from(NAMES), VALUES, min_size=1, max_size=6))
def test_no_yaml_raises_anything_else(values, folder: Path) -> None:
    import yaml

    (folder / "a.yaml").write_text(yaml.safe_dump(values))
    outcome(folder / "a.yaml")


@settings(max_examples=150, deadline=None)
@given(pairs=st.lists(st.tuples(st.sampled_from(NAMES), st.text(max_size=12)), max_size=8), flag=st.booleans())
def test_no_words_raise_anything_else(pairs, flag: bool, folder: Path) -> None:
    words = [f"--{name.replace('_', '-')} {text}" if flag else f"{name}={text}" for name, text in pairs]
    (folder / "a.sh").write_text(" ".join(words), encoding="utf-8", errors="replace")
    outcome(folder / "a.sh")


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=80), suffix=st.sampled_from([".yml", ".toml", ".sh", ""]))
def test_no_bytes_raise_anything_else(content: bytes, suffix: str, folder: Path) -> None:
    (folder / f"b{suffix}").write_bytes(content)
    outcome(folder / f"b{suffix}")


def test_nothing_in_a_file_is_run(folder: Path) -> None:
    mark = folder / "mark"
    (folder / "a.sh").write_text(
        f"touch {mark}; $(touch {mark}) `touch {mark}` remat_policy=full steps=$(touch {mark})"
    )
    assert read_job("baseline", folder / "a.sh") is not None
    (folder / "a.yml").write_text(f"remat_policy: !!python/object/apply:os.system ['touch {mark}']\n")
    assert outcome(folder / "a.yml") is None
    assert not mark.exists()


def test_aliases_are_refused(folder: Path) -> None:
    (folder / "a.yml").write_text("a: &a [1]\nremat_policy: *a\n")
    with pytest.raises(ConfigError, match=r"an alias \(\*name\)"):
        read_job("baseline", folder / "a.yml")


def test_every_large_trainer_has_a_writer() -> None:
    with_one = {stack for stack in load_group("stack") if writers_of(stack)}
    assert {"maxtext", "megatron", "nemo", "bridge", "bridge_fused", "torchtitan", "torchtitan_eager"} <= with_one
