"""What fuzzing has found, each as the smallest input of its kind: it is refused in one line, at once."""

from __future__ import annotations

import json
import socket
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from asap_ray.agents import learned
from asap_ray.agents.learned import ARRAYS, read_weights
from asap_ray.compiler.hlo import HloError, parse
from asap_ray.compiler.live import largest
from asap_ray.compiler.lowered import bare
from asap_ray.errors import AsapError, ConfigError
from asap_ray.fitting.store import read_folds
from asap_ray.interchange.measured_tables import read_tables
from asap_ray.interchange.projects import read_job
from asap_ray.knowledge import card_from_mapping
from asap_ray.ledger import NAME, Ledger
from asap_ray.plan import Plan
from asap_ray.profile import xplane
from asap_ray.profile.xspace import TraceError
from asap_ray.recipe import Recipe
from asap_ray.settings import load_group
from asap_ray.tasks import shipping
from asap_ray.tasks.bundles import bundle_from_mapping
from asap_ray.tasks.night.lock import _gone, _owner, _text
from asap_ray.tasks.scenario import scenario_from_mapping
from asap_ray.tasks.shipping import _is_wheel
from asap_ray.tiers.cache import Cache
from asap_ray.tiers.compile_with import build_of
from asap_ray.tiers.launch import Ran, file_text
from asap_ray.tiers.recorded import read_record
from tests.fuzz import bombs
from tests.fuzz.everything import everything
from tests.fuzz.running import Figures, peak_mb, reset_peak, within
from tests.profile.xspace_writer import Kind, Plane, xspace

HEAD = "HloModule x, num_partitions=4\n\n"
CARD = {"when": ["bound is ici"], "moves": [{"tensor": "half"}], "why": "a", "source": "b"}
BUNDLE = {"about": "a", "flags": {"tpu": {"xla_a": True}}}
BOMBED = (
    *("plan lines", "files of config_dir/stack", "MaxText yml", "torchtitan toml", "tables, Parquet"),
    *("HLO text, layers", "lock of a night", "record of compilations"),
)
MOST_MB = 1000


def told(read: Callable[[], object]) -> str:
    """What a refusal says; empty where there is none."""
    try:
        read()
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("reader", [each for each in everything() if each.name in BOMBED], ids=lambda each: each.name)
def test_what_asks_for_much_gets_little(reader: Any) -> None:
    found, before = Figures(name=reader.name), reset_peak()
    for bomb in reader.bombs:
        found.add(reader, bomb() if callable(bomb) else bomb)
    assert found.crashes == {}
    assert peak_mb() - before < MOST_MB


@pytest.mark.parametrize(
    ("read", "given", "key"),
    [
        (card_from_mapping, CARD | {"when": 3}, "cards.mine.when"),
        (card_from_mapping, CARD | {"exceptions": "a"}, "cards.mine.exceptions"),
        (bundle_from_mapping, BUNDLE | {"sources": 0.5}, "xla.mine.sources"),
        (bundle_from_mapping, BUNDLE | {"notes": ["a"]}, "xla.mine.notes"),
    ],
)
def test_a_field_of_another_kind_is_named(read: Callable[..., object], given: Mapping[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        read("mine", given)


@pytest.mark.parametrize(
    "change", [{"data_as": [{}]}, {"bound": 5}, {"about": ["a"]}, {"reported": {"text": "a", "speedup": []}}]
)
def test_a_scenario_of_other_kinds_is_refused(change: Mapping[str, Any]) -> None:
    given = {"name": "mine", **load_group("scenario")["asap_compute"]["scenario"]}
    with pytest.raises(ConfigError, match=f"scenario.{next(iter(change))}"):
        scenario_from_mapping(given | change)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "train: {micro_batch_size: 1}\nmodel: 2\n"),
        ("a.toml", f"[training]\nseq_len = {'9' * 5000}\n"),
        ("a.toml", f"[{'a.' * 500}a]\n[parallelism]\n"),
        ("a.yaml", f"per_device_batch_size: 1{':59' * 1000}\n"),
        ("a.yaml", "".join(f"k{i}: 1\n" for i in range(60_000))),
        ("a.json", "[" * 100_000),
    ],
)
def test_a_trainers_file_is_read_or_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with within(5.0):
        assert told(lambda: read_job("baseline", tmp_path / name)).isprintable()


@pytest.mark.parametrize(
    "text", ["a: " + "[" * 40 + "]" * 40, f"a: 1{':59' * 1000}", "a: &a [*a]", "a: " + "b" * 2**19]
)
def test_settings_that_no_reader_survives_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match="a settings file"):
        load_group("model", str(tmp_path))


def test_a_layout_has_as_many_parts_as_a_slice_has_axes() -> None:
    with pytest.raises(ConfigError, match="at most 8 parts"):
        Plan.parse("data=2@" + ".".join(["2"] * 20_000))


def test_a_word_that_is_no_gene_is_quoted_as_text() -> None:
    with pytest.raises(ValueError, match="is no gene") as caught:
        Recipe.parse("\x1b[2J=1")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "FileNames\nx y\n\n" + HEAD + "ENTRY %m (a: f32[2]) -> f32[2] {\n  ROOT %a = f32[2] parameter(0)\n}\n",
        HEAD + "ENTRY %m (a: f32[2]) -> f32[2] {\n  ROOT %a = f32[2] parameter(x)\n}\n",
        HEAD + "ENTRY %m () -> f32[2] {\n  ROOT %a = f32[2] add((((\n}\n",
        HEAD + "ENTRY %m () -> f32[2] {\n  ROOT %a = f32[2] call(%a), to_apply=%m\n}\n",
        HEAD + "ENTRY %m () -> f32[2] {\n  ROOT %a = f32[2] call(%a), to_apply=%gone\n}\n",
    ],
)
def test_a_program_that_is_none_is_an_error_of_ours(text: str) -> None:
    with pytest.raises(HloError) as caught:
        largest(parse(text))
    assert str(caught.value).isprintable()


def test_a_kernel_that_cannot_be_read_stays_as_it_is() -> None:
    text = 'x {backend_config = "{\\22body\\22: \\22TUzvUgFNTElSMjA=\\22}"}'
    assert bare(text) == text


def test_a_trace_in_which_nothing_takes_time_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(xspace(Plane("/device:TPU:0", {"XLA Ops": [(1.0, 1.0, "fusion.1", {})]})))
    with pytest.raises(TraceError, match="no op of a device"):
        xplane.read(path)


def test_stats_that_no_profiler_writes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "host.xplane.pb"
    event = (0.0, 1.0, Kind("a"), {"hlo_op": "fusion.1", "device_ordinal": "x"})
    path.write_bytes(xspace(Plane("/host:CPU", {"python": [event]})))
    with pytest.raises(TraceError, match="what no profiler writes"):
        xplane.read(path)


def test_memory_that_lacks_is_told_whichever_words_say_so(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    log.write_text("Ran out of memory in memory space hbm. Used 20.5G of 15.75G hbm.\n")
    build = build_of(Ran(ended="exited", log=str(log)))
    assert (build.status, build.reason[:17]) == ("infeasible", "Ran out of memory")


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"kind": ' + b"9" * 5000 + b"}", b'{"kind": 1}', b"\xff"])
def test_a_line_that_is_no_event_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / NAME).write_bytes(line + b"\n")
    with pytest.raises(ConfigError, match="line 1 is no event"):
        list(Ledger(tmp_path).events())


@pytest.mark.parametrize("pid", [2**63, -1, True, "1", None])
def test_a_lock_of_a_process_that_cannot_be_is_judged_by_its_age(tmp_path: Path, pid: object) -> None:
    path = tmp_path / "night.lock"
    path.write_text(json.dumps({"host": socket.gethostname(), "pid": pid}))
    assert _gone(tmp_path, path, _owner(_text(path) or b"")) is (pid == 2**63)


def test_a_cached_result_that_unpacks_without_end_is_none(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "abc.json.gz").write_bytes(bombs.zipped(b"[" * 200_000))
    assert Cache(tmp_path).read("abc") is None


def test_weights_and_wheels_are_opened_only_if_they_unpack_to_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.whl"
    path.write_bytes(bombs.npz(dict.fromkeys(ARRAYS, (2**40,))))
    with pytest.raises(ValueError, match="no weights"):
        read_weights(path)
    assert _is_wheel(path)
    monkeypatch.setattr(shipping, "MOST_BYTES", 100)
    monkeypatch.setattr(learned, "MOST_BYTES", 100)
    assert not _is_wheel(path)
    with pytest.raises(ValueError, match="no weights"):
        read_weights(path)


@pytest.mark.parametrize("name", ["../out.py", "/out.py", "a/../../out.py"])
def test_a_wheel_with_files_that_lead_out_of_it_is_none(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, "")
    assert not _is_wheel(path)


@pytest.mark.parametrize("read", [read_record, read_folds])
def test_a_file_of_ours_that_is_another_is_named(tmp_path: Path, read: Callable[[Path], object]) -> None:
    (tmp_path / "a").write_bytes(b"a,b\n1,2\n")
    with pytest.raises(AsapError, match=str(tmp_path)):
        read(tmp_path / "a")


def test_a_table_is_read_only_if_it_unpacks_to_what_memory_holds(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(bombs.parquet_bomb(("hardware", "framework", "chips"), rows=700_000))
    with pytest.raises(ConfigError, match="2,100,000 cells"):
        read_tables("compare.tables", [path])
    path.write_bytes(bombs.parquet_bomb(("hardware", "framework", "chips"), rows=300_000))
    with pytest.raises(ConfigError, match="bytes of text"):
        read_tables("compare.tables", [path])


def test_a_trainers_toml_holds_any_text(tmp_path: Path) -> None:
    given = {"a": "llama \U0001f999", "b": {"\U0001f999": ["x", 1]}}
    assert tomllib.loads(file_text("a.toml", given)) == given


def test_events_of_other_types_are_refused_by_show(command: Any) -> None:
    start = {"kind": "start", "at": "x", "task": 5, "command": 5, "workload": []}
    Path("run").mkdir()
    (Path("run") / NAME).write_text(json.dumps(start) + "\n")
    ended = command("task=show", "run_dir=run")
    assert (ended.status, ended.err.count("\n")) == (1, 1)
