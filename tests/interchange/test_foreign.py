"""Whatever a file holds, reading it gives values or one ConfigError of one printable line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asap_ray.errors import ConfigError
from asap_ray.interchange.foreign import ForeignConfig, told


def load(path: Path | str) -> ForeignConfig:
    return ForeignConfig.load("model.hf_config", path, "a config.json")


def refusal(path: Path | str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path)
    text = str(caught.value)
    assert text.startswith("model.hf_config=")
    assert text.isprintable()
    assert len(text) < 400
    return text


def write(folder: Path, text: str) -> Path:
    path = folder / "config.json"
    path.write_text(text)
    return path


def test_what_is_no_file_is_refused(tmp_path):
    assert "does not exist" in refusal(tmp_path / "config.json")
    assert "is a directory" in refusal(tmp_path)
    assert "is a directory" in refusal("")
    assert "allowed: a" in refusal("/dev/zero")
    assert "model.hf_config=" in refusal("a\x00b")
    assert "model.hf_config=" in refusal("x" * 5000)
    assert "\x1b" not in refusal("\x1b[31m")
    os.mkfifo(tmp_path / "pipe")
    assert "allowed: a file" in refusal(tmp_path / "pipe")


@pytest.mark.parametrize(
    "text", ["", "{", "model: llama", "[" * 100_000, '{"a":' * 100_000, "9" * 10_000, "\ufeff{", '{"a": 1}}', "\x00"]
)
def test_what_is_no_json_is_refused(text, tmp_path):
    assert "is not JSON" in refusal(write(tmp_path, text))


def test_what_is_no_text_is_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\xfd\x80")
    assert "is not JSON" in refusal(path)
    path.write_bytes(b" " * (4 * 2**20 + 1))
    assert "at most" in refusal(path)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"llama"', "NaN"])
def test_what_is_no_object_is_refused(text, tmp_path):
    assert "not a JSON object" in refusal(write(tmp_path, text))


def test_values_are_checked_as_they_are_asked_for(tmp_path):
    config = load(write(tmp_path, json.dumps({"a": 3, "b": None, "c": True, "d": "x", "rate": 0.1, "zero": 0.0})))
    assert (config.size("a"), config.size("b", 7), config.size("none", 0)) == (3, 7, 0)
    assert (config.flag("c"), config.flag("b", True), config.flag("none")) == (True, True, False)
    assert (config.name("d"), config.has("a"), config.has("b")) == ("x", True, False)
    assert (config.any_above_zero("zero", "rate"), config.any_above_zero("zero", "d", "none")) == (True, False)
    assert config.having({"a": 5}).size("a") == 5
    for ask in (lambda: config.size("a", least=4), lambda: config.flag("a"), lambda: config.name("a")):
        with pytest.raises(ConfigError, match=r"^model\.hf_config="):
            ask()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("red\x1b[31m", r"'red\x1b[31m'"),
        ("x" * 10_000, "'" + "x" * 29 + "…" + "x" * 14 + "' (10,002 characters)"),
        ([["deep"]], "a list"),
        ({"a": {}}, "an object"),
        (float("nan"), "nan"),
        (None, "null"),
    ],
)
def test_a_foreign_value_is_shown_escaped_and_cut(value, text):
    assert told(value) == text


@pytest.fixture(scope="module")
def config_path(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("foreign") / "config.json"


def outcome(path: Path) -> ForeignConfig | ConfigError:
    try:
        return load(path)
    except ConfigError as error:
        return error


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=64))
def test_no_bytes_raise_anything_else(content, config_path):
    config_path.write_bytes(content)
    found = outcome(config_path)
    assert isinstance(found, ForeignConfig) or str(found).isprintable()
