"""`task=doctor`: each shortfall is found and comes with what to type; what can run is said to, and nothing is left."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from asap_ray.compiler import toolchain
from asap_ray.compiler.here import Found
from asap_ray.config import Config, HardwareConfig
from asap_ray.executor import local
from asap_ray.executor.room import Node
from asap_ray.hardware import Slice, parse_slice
from asap_ray.report.health import Check
from asap_ray.tasks.health import cluster, devices, machine
from asap_ray.tasks.setting import load_chips
from asap_ray.tiers.protocol import Job, Outcome

PIP = f"{sys.executable} -m pip install"


def the_slice(name: str) -> Slice:
    return parse_slice(name, load_chips(Config()))


def ended(value: Any = None, reason: str = "") -> Outcome:
    status = "failed" if reason else "complete"
    return Outcome(job=Job(name="any", work=print), status=status, value=value, reason=reason)


def test_a_real_look_says_that_this_machine_can_run_the_main_job_and_leaves_nothing(
    command: Callable[..., Any], tmp_path: Path
) -> None:
    told = command("task=doctor", "hardware=v5e-4", "output=json")
    assert told.status == 0, told.err
    found = json.loads(told.out)
    assert found["able"] is True
    names = {each["name"]: each for each in found["checks"]}
    assert {"python", "packages", "cores", "memory", "run_dir", "jax", "devices", "address"} <= names.keys()
    if not toolchain.missing(the_slice("v5e-4").chip):
        assert names["compiler of v5e"]["found"] == "knows v5e-4: 4 devices, with no chip here"
    assert list(tmp_path.iterdir()) == []


def test_what_a_command_needs_and_is_not_there_ends_with_status_1_and_a_fix(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # a port that nobody else listens on, and then nobody
        port = server.getsockname()[1]
    monkeypatch.setattr(local, "run", lambda jobs, workers: [ended_of(job) for job in jobs])
    told = command("task=doctor", "tiers=[roofline,run]", f"ray.address=127.0.0.1:{port}", "output=plain")
    assert told.status == 1
    assert f"ray.address=127.0.0.1:{port}: no Ray cluster answers there" in told.out
    assert "address  ray start --head on that machine, or ray.address=local" in told.out
    assert told.out.splitlines()[-1].endswith("cannot run here before that is done")


def ended_of(job: Job) -> Outcome:
    value = Found(platform="cpu", kind="cpu", count=1, memory_bytes=None) if job.name == devices.OWN else 4
    return Outcome(job=job, status="complete", value=value)


def test_packages_that_are_missing_or_too_old_are_named_as_pip_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"here": "2.0", "old": "1.9"}
    monkeypatch.setattr(machine, "installed_version", lambda name: there.get(name, ""))
    wanted = [Requirement(text) for text in ("here>=2", "old>=2", "gone", "more>=1; extra == 'gp'")]
    found = machine.packages(wanted)
    assert (found.status, found.fix) == ("lacking", f"{PIP} 'old>=2' 'gone'")
    (gp, *_) = machine.extras(wanted, Config())
    assert (gp.status, gp.found, gp.fix) == ("without", "more>=1 is for search=gp", f"{PIP} 'more>=1'")
    assert machine.packages([]).status == "without"


def test_another_libtpu_than_that_of_jax_is_lacking_and_none_at_all_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [Requirement(text) for text in ("jaxlib<=1.2,>=1.2", "libtpu==0.4.*; extra == 'tpu'")]
    there = {"jax": "1.2", "jaxlib": "1.2", "libtpu": "0.5.1"}
    for module in (machine, toolchain):
        monkeypatch.setattr(module, "installed_version", lambda name: there.get(name, ""))
    found = devices.pairing(wanted)
    assert (found.status, found.fix) == ("lacking", f"{PIP} 'libtpu==0.4.*'")
    del there["libtpu"]
    assert devices.pairing(wanted).status == "ok"


def test_a_folder_that_takes_no_file_is_lacking(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    blocked = machine.folder("run_dir", tmp_path / "file" / "below", fix="run_dir=PATH")
    assert (blocked.status, blocked.fix) == ("lacking", "run_dir=PATH")
    assert "Not a directory" in blocked.found
    made = machine.folder("run_dir", tmp_path / "a" / "b", fix="")
    assert made.status == "ok"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("ids", "count"),
    [
        ([("0x1ae0", "0x0063")] * 4, 4),  # a v5e host
        ([("0x1ae0", "0x0042"), ("0x10de", "0x2330")], 0),  # Google's network card, an NVIDIA GPU
        ([], 0),
    ],
)
def test_tpu_chips_are_counted_on_the_bus(tmp_path: Path, ids: list[tuple[str, str]], count: int) -> None:
    for place, (vendor, device) in enumerate(ids):
        folder = tmp_path / f"0000:00:{place:02x}.0"
        folder.mkdir()
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "device").write_text(device + "\n")
    assert devices.tpus_here(tmp_path) == count


def test_chips_that_jax_cannot_use_matter_where_trials_are_to_run_on_them() -> None:
    outcome = ended(reason="RuntimeError: Unable to initialize backend 'cuda'")
    for config, status in (
        (Config(), "without"),
        (Config(tiers=["roofline", "run"], hardware=HardwareConfig(slices=["local"])), "lacking"),
    ):
        found = devices.own(config, "cuda", "8 x NVIDIA H100 80GB HBM3", outcome)
        assert (found.status, found.fix) == (status, f"{PIP} 'jax[cuda12]'")
        assert found.found.startswith("8 x NVIDIA H100 80GB HBM3; JAX cannot use them: RuntimeError")


def test_a_chip_without_a_compiler_is_told_what_else_to_do() -> None:
    found = devices.compiler(Config(tiers=["roofline", "compile"]), the_slice("mi300x8"), None)
    assert (found.status, found.fix) == ("lacking", "tiers=roofline")
    slice_ = the_slice("v5e-4")
    refused = devices.compiler(Config(), slice_, ended(reason="the compiler has no such slice"))
    assert refused.status == "without"


def host(name: str, topology: str, **labels: str) -> Node:
    told = {"ray.io/tpu-slice-name": name, "ray.io/tpu-topology": topology, "ray.io/accelerator-type": "TPU-V6E"}
    return Node(f"{name}-{labels}", {"CPU": 8, "TPU": 4}, {**told, **labels})


def looked(config: Config, nodes: list[Node], *names: str) -> dict[str, Check]:
    slices = [the_slice(name) for name in names]
    return {each.name: each for each in cluster.cluster(config, "host:6379", None, slices, ended(nodes))}


def test_slices_of_a_cluster_are_told_and_what_the_command_needs_is_looked_for_among_them() -> None:
    nodes = [Node("head", {"CPU": 4}), *(host("a", "4x4", worker=str(rank)) for rank in range(4))]
    found = looked(Config(tiers=["roofline", "run"]), nodes, "v6e-16", "v6e-64")
    assert found["address"].found == "host:6379: 5 nodes with 36 CPU, 16 TPU"
    assert found["slices"].found == "TPU-V6E 4x4 a (4 hosts)"
    assert (found["room for v6e-16"].status, found["room for v6e-16"].found) == ("ok", "4 hosts of it can be reserved")
    lacking = found["room for v6e-64"]
    assert lacking.status == "lacking"
    assert "0 slices of v6e 8x8" in lacking.found
    assert looked(Config(), nodes, "v6e-64")["room for v6e-64"].status == "without"


def test_hosts_with_chips_and_no_labels_are_told_how_they_get_them() -> None:
    bare = looked(Config(), [Node("x", {"TPU": 4})])["slices"]
    assert bare.status == "lacking"
    assert "TPU webhook" in bare.fix


def test_a_cluster_that_cannot_be_joined_says_why_and_what_to_do() -> None:
    outcome = ended(reason="RuntimeError: Version mismatch: The cluster was started with Ray: 2.9")
    (found,) = cluster.cluster(Config(), "host:6379", None, [], outcome)
    assert found.status == "lacking"
    assert found.fix.startswith("install the cluster's own versions")
