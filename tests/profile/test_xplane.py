"""Traces read from files: real ones of this machine's CPU, and the layouts of TPUs and GPUs."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from asap_ray.profile import xplane
from asap_ray.profile.summary import PARTS
from asap_ray.profile.verdict import verdict
from asap_ray.profile.xspace import TraceError, read_tables
from tests.profile import layouts
from tests.profile.make_traces import BATCH, HIDDEN, LAYERS, STEPS, TRACES, WIDTH
from tests.profile.xspace_writer import Kind, Plane, xspace


@pytest.fixture
def session(tmp_path: Path) -> Path:
    folder = tmp_path / "plugins" / "profile" / "2026_01_01"
    folder.mkdir(parents=True)
    return folder


def unpacked(name: str, session: Path) -> Path:
    for file in (TRACES / name).iterdir():
        (session / file.name.removesuffix(".gz")).write_bytes(gzip.decompress(file.read_bytes()))
    return session


def test_a_step_of_a_cpu_is_read_with_the_work_that_its_program_says(session: Path) -> None:
    found = xplane.read(unpacked("one_host", session).parents[2])
    profile, summary = found.profile(), found.summary
    assert (len(found.devices), summary.hosts, summary.steps) == (4, 1, STEPS - 1)
    assert summary.found_by == "steps that the host annotates"
    assert found.flags == ()
    assert sum(summary.shares.values()) == pytest.approx(1)
    assert tuple(summary.shares) == PARTS
    assert profile.step_time_s == pytest.approx(
        sum(summary.shares[part] for part in PARTS) * sum(sum(d.parts.values()) for d in summary.devices) / 4
    )
    # Forward two matmuls a layer, once more in the recomputation; backward two for each: on a quarter of the whole.
    one = 2 * BATCH * WIDTH * HIDDEN * LAYERS / 4
    phases = profile.by("phase", "flops")
    assert phases["forward"] + phases["recompute"] == pytest.approx(3 * one)  # the last product is not needed again
    assert phases["backward"] == pytest.approx(4 * one)
    # Activations are reduced over tensor once a layer forward; their gradients and those of the weights backward.
    activations, weights = 4 * BATCH / 2 * WIDTH * LAYERS, 4 * WIDTH * HIDDEN / 2 * LAYERS
    sent = {
        phase: sum(op.wire_bytes for op in profile.collectives if op.phase == phase) for phase in profile.by("phase")
    }
    assert sent["forward"] == pytest.approx(activations + 4)  # and the loss, over data
    assert sent["backward"] == pytest.approx(activations + 2 * weights)
    assert {op.source.partition(":")[0] for op in profile.collectives} == {"tests/profile/make_traces.py"}


def test_several_hosts_are_one_profile(session: Path) -> None:
    found = xplane.read(unpacked("two_hosts", session))
    assert found.summary.hosts == 2
    assert [(each.host, each.name) for each in found.devices] == [
        ("host0", "CPU:0"),
        ("host0", "CPU:1"),
        ("host1", "CPU:2048"),
        ("host1", "CPU:2049"),
    ]
    rows = [op for op in found.profile().ops if op.category == "all_reduce"]
    assert sum(op.count for op in rows) == pytest.approx(3 * LAYERS + 1)


def test_one_file_and_the_newest_of_several_profiles_are_taken(session: Path) -> None:
    unpacked("one_host", session)
    newer = session.parent / "2026_01_02"
    shutil.copytree(session, newer)
    assert xplane.files_of(session.parents[2]) == (newer / "host0.xplane.pb",)
    assert xplane.files_of(session / "host0.xplane.pb") == (session / "host0.xplane.pb",)


def test_the_layout_of_a_tpu(session: Path) -> None:
    """layouts.tpu: 60 us of work, 15 of a gather's 35 exposed, 5 of copies, 8 of infeed, 12 of nothing."""
    (session / "t1v-n-0.xplane.pb").write_bytes(layouts.tpu())
    found = xplane.read(session)
    summary, profile = found.summary, found.profile()
    assert (found.chip, found.peaks) == ("TPU v5p", pytest.approx((4e8, 1e8)))
    assert (summary.steps, summary.step_s) == (2, pytest.approx(100e-6))
    assert summary.found_by == "launches of the main program"
    shares = {"compute": 0.60, "collectives": 0.15, "copies": 0.05, "input": 0.08, "host": 0.0, "idle": 0.12}
    assert summary.shares == pytest.approx(shares)
    assert summary.waited_s == pytest.approx(15e-6)
    rows = {op.name: op for op in profile.ops}
    assert rows["all-gather-start.1"].seconds == pytest.approx(35e-6)
    assert rows["all-gather-start.1"].exposed_s == pytest.approx(15e-6)
    assert rows["all-gather-start.1"].count == 1
    assert rows["all-gather-start.1"].overlaps_with == ("fusion.2",)
    matmul = rows["fusion.1"]
    assert (matmul.category, matmul.phase, matmul.source, matmul.flops) == ("matmul", "forward", "model.py:7", 30_000)
    assert (rows["fusion.2"].category, rows["fusion.2"].phase, rows["fusion.2"].flops) == ("elementwise", "backward", 0)
    judged = verdict(summary, profile, found.peaks)
    assert judged.mxu == pytest.approx(30_000 / (100e-6 * 4e8))
    assert judged.hbm == pytest.approx(6_000 / (100e-6 * 1e8))
    assert judged.bound == "idle"
    assert judged.abstains is not None
    assert judged.abstains.startswith("the mesh is not the bottleneck: devices do nothing for 20.0% of the step")


def test_a_slow_device_is_named_and_the_others_wait(session: Path) -> None:
    (session / "t1v-n-0.xplane.pb").write_bytes(layouts.tpu(devices=4, slowest=26.0))
    summary = xplane.read(session).summary
    assert summary.slowest == "TPU:3 of t1v-n-0"
    assert summary.skew == pytest.approx(26 / 65)
    assert summary.step_s == pytest.approx(126e-6)


def test_the_layout_of_a_gpu(session: Path) -> None:
    """layouts.gpu: of the gather's 20 us half hides, the copy of 4 and the op of 10 do not, 6 us are idle."""
    (session / "node0.xplane.pb").write_bytes(layouts.gpu())
    found = xplane.read(session)
    summary, rows = found.summary, {op.name: op for op in found.profile().ops}
    assert found.chip == "NVIDIA H100 80GB HBM3"
    assert (summary.steps, summary.step_s) == (2, pytest.approx(50e-6))
    assert summary.found_by == "an op that runs once a step"
    assert summary.shares == pytest.approx(
        {"compute": 0.6, "collectives": 0.2, "copies": 0.08, "input": 0.0, "host": 0.0, "idle": 0.12}
    )
    assert rows["gemm_fusion_dot.1"].category == "matmul"
    gather = next(op for op in rows.values() if op.category == "all_gather")
    assert (gather.seconds, gather.exposed_s) == (pytest.approx(20e-6), pytest.approx(10e-6))


def test_what_was_captured_here_is_read_back(tmp_path: Path) -> None:
    import jax
    import jax.numpy as jnp

    product = jax.jit(lambda x: x @ x)
    x = jax.block_until_ready(product(jnp.ones((64, 64))))
    with xplane.capture(tmp_path):
        for number in range(3):
            with xplane.step(number):
                x = jax.block_until_ready(product(x))
    found = xplane.read(tmp_path)
    assert found.summary.steps == 2
    (row,) = [op for op in found.profile().ops if op.flops]
    assert (row.count, row.flops, row.category) == (1, 2 * 64**3, "matmul")
    text = product.lower(x).compile().as_text()
    assert xplane.profile_of(tmp_path, hlo=text).total("flops") == 2 * 64**3


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it holds no planes"),
        (b"hello, this is a text file\n", "it is no profile|it is cut off"),
        (b"\x0a\xff\xff\xff\xff\x7f", "it is cut off, or no profile: a field of 34,359,738,367 bytes has 0 left"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "a number does not end"),
        (layouts.tpu()[:-700], "it is cut off, or no profile: a field of"),
        (xspace(Plane("/host:CPU")), "no op of a device is in it"),
    ],
)
def test_a_file_that_is_none_is_named_with_what_is_wrong(session: Path, data: bytes, words: str) -> None:
    file = session / "h\x1b[31m.xplane.pb"
    file.write_bytes(data)
    with pytest.raises(TraceError, match=words) as caught:
        xplane.read(file)
    assert str(caught.value).startswith(f"{session}/h\\x1b[31m.xplane.pb: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_would_take_too_much_memory_is_refused(session: Path) -> None:
    file = session / "h.xplane.pb"
    with file.open("wb") as made:
        made.truncate(xplane.MOST_BYTES + 1)
    with pytest.raises(TraceError, match="536,870,913 bytes are more than the 536,870,912 that are read; trace fewer"):
        xplane.read(file)


def test_folders_without_a_profile(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="there is no such file or folder"):
        xplane.read(tmp_path / "nowhere")
    with pytest.raises(TraceError, match=r"no \*\.xplane\.pb in it or below it"):
        xplane.read(tmp_path)


def test_every_cut_of_a_file_is_told_and_nothing_else_happens() -> None:
    data = layouts.gpu()
    whole = 0
    for end in range(0, len(data), 7):
        try:
            read_tables(data[:end])
            whole += 1
        except TraceError:
            pass
    assert whole <= 2


def test_a_program_that_is_none_leaves_the_times(session: Path) -> None:
    planes = layouts.tpu_plane(0), Plane("/host:metadata", kinds=[Kind("jit_step(7)", {"Hlo Proto": b"\x0a\x03abc"})])
    (session / "h.xplane.pb").write_bytes(xspace(*planes))
    found = xplane.read(session)
    assert found.summary.step_s == pytest.approx(100e-6)
    assert any("jit_step(7)" in flag for flag in found.flags)
