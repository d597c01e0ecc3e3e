"""Who talks to whom, over which axes, and how many bytes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from asap_ray.compiler import collectives
from asap_ray.compiler.collectives import DeviceMesh, collective, replica_groups
from asap_ray.compiler.hlo import HloError, parse
from asap_ray.plan import AXES, Plan
from tests.compiler.conftest import Profiled
from tests.compiler.programs import BATCH, HIDDEN, LAYERS, LENGTH, WIDTH


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,2},{1,3}}", [[0, 2], [1, 3]]),
        ("{}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("[2,4]<=[8]", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("[4,2]<=[2,4]T(1,0)", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("[2,4]<=[2,2,2]T(1,0,2)", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("mesh['a'=2,'b'=4,'c'=1] {'b'}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("mesh['a'=2,'b'=4] {'a'}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("mesh['a'=2,'b'=2,'c'=2] {'a','c'}", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("mesh['a'=8] {'a':(2)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("mesh['a'=8] {'a':(1)2}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", [[0, 2, 4, 6], [1, 3, 5, 7]]),
    ],
)
def test_groups_in_every_form(text: str, groups: list[list[int]]) -> None:
    attributes = f"channel_id=1, replica_groups={text}, use_global_device_ids=true, to_apply=%add"
    found = replica_groups(attributes, 8)
    assert sorted(sorted(map(int, group)) for group in found) == groups


@pytest.mark.parametrize("text", ["{{0,1},{2}}", "<nothing known>"])
def test_groups_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(HloError):
        replica_groups(f"replica_groups={text}, x=1", 4)


@pytest.mark.parametrize("members", [m for n in (1, 2, 3) for m in itertools.combinations(AXES, n)])
def test_axes_of_groups_are_those_that_made_them(members: tuple[str, ...]) -> None:
    plan = Plan(ici=(2, 3, 1, 2, 2, 2))
    ids = np.arange(48).reshape(plan.sizes)
    axes = [AXES.index(axis) for axis in members]
    rest = [axis for axis in range(6) if axis not in axes]
    ranks = int(np.prod([plan.sizes[axis] for axis in axes]))
    groups = ids.transpose(rest + axes).reshape(-1, ranks)
    found, inside, crosses, whole = DeviceMesh(plan, 48).axes_of(groups)
    assert found == tuple(axis for axis in members if axis != "pipeline")
    assert (inside, crosses, whole) == (ranks > 1, False, True)


def test_part_of_an_axis_is_not_the_whole() -> None:
    mesh = DeviceMesh(Plan(ici=(1, 8, 1, 1, 1, 1)), 8)
    assert mesh.axes_of(np.array([[0, 1], [2, 3], [4, 5], [6, 7]])) == (("fsdp",), True, False, False)


def test_links_are_those_that_members_differ_along() -> None:
    # fsdp's 64 ranks are 4 x 4 x 4, the last link innermost; tensor's two are next to each other on the first link.
    plan = Plan.parse("fsdp=64@4.4.4 tensor=2@2.1.1 micro_batch=1 sequence_parallel=true remat=full")
    mesh = DeviceMesh(plan, 128)
    rank = lambda fsdp, tensor: fsdp * 2 + tensor  # noqa: E731
    assert mesh.links_of(np.array([[rank(0, 0), rank(0, 1)]])) == (0,)
    assert mesh.links_of(np.array([[rank(n, 0) for n in range(4)]])) == (2,)
    assert mesh.links_of(np.array([[rank(4 * n, 1) for n in range(16)]])) == (0, 1)
    assert DeviceMesh(Plan(ici=(1, 8, 1, 1, 1, 1)), 8).links_of(np.array([[0, 1]])) is None


def test_a_gpu_program_numbers_all_domains() -> None:
    # fsdp is 2 inside a domain and 2 across, the domains outermost; tensor is 2 inside.
    mesh = DeviceMesh(Plan(ici=(1, 2, 1, 1, 1, 2), dcn=(1, 2, 1, 1, 1, 1)), 8)
    assert mesh.axes_of(np.array([[0, 1]])) == (("tensor",), True, False, True)
    assert mesh.axes_of(np.array([[0, 2, 4, 6]])) == (("fsdp",), True, True, True)
    assert mesh.axes_of(np.array([[0, 4], [2, 6]])) == (("fsdp",), False, True, False)


def test_a_program_for_other_devices_is_refused() -> None:
    with pytest.raises(HloError, match="for 5 devices"):
        DeviceMesh(Plan(ici=(1, 8, 1, 1, 1, 1), dcn=(2, 1, 1, 1, 1, 1)), 5)


def moved(profiled: Profiled, name: str, least: float = 1e4) -> dict[tuple[str, tuple[str, ...], str], float]:
    return {key: sent for key, sent in profiled(name).moved().items() if sent > least}


def test_bytes_of_a_step_by_kind_and_axes(profiled: Profiled) -> None:
    # data = fsdp = 2, tensor = 4. Activations of 4 sequences are gathered forward, once more, and as the gradient of
    # the scattered; scattered forward and as the gradient of the gathered. Both weights are gathered forward and again
    # in bf16, and their gradients scattered; those of a shard are summed over data in fp32.
    block = 4 * LENGTH * WIDTH * 2
    weight = WIDTH * HIDDEN / 4 * 2
    assert moved(profiled, "layers") == {
        ("all_gather", ("tensor",), "ici"): LAYERS * 3 * block * 3 / 4,
        ("reduce_scatter", ("tensor",), "ici"): LAYERS * 2 * block * 3 / 4,
        ("all_gather", ("fsdp",), "ici"): LAYERS * 4 * weight / 2,
        ("reduce_scatter", ("fsdp",), "ici"): LAYERS * 2 * weight / 2,
        ("all_reduce", ("data",), "ici"): LAYERS * 2 * (WIDTH * HIDDEN / 8 * 4) * 2 / 2,
    }


def test_bytes_across_two_nodes(profiled: Profiled) -> None:
    block = BATCH / 4 * LENGTH * WIDTH * 2
    found = moved(profiled, "layers_two_nodes")
    assert found["all_reduce", ("data",), "dcn"] == LAYERS * 2 * (WIDTH * HIDDEN / 8 * 4) * 2 / 2
    assert found["all_gather", ("tensor",), "ici"] == LAYERS * 3 * block * 3 / 4
    assert {level for _, _, level in found} == {"ici", "dcn"}


def test_bytes_across_two_slices(profiled: Profiled) -> None:
    # fsdp is 4 inside a slice and 2 across. What is gathered across is a device's piece from the other slice: the
    # weight over the 4 devices inside, halved. Sums of gradients go across once the slice has summed and split them.
    weight = WIDTH * HIDDEN / 2 * 2
    found = moved(profiled, "layers_two_slices")
    assert found["all_gather", ("fsdp",), "dcn"] == LAYERS * 4 * weight / 4 / 2
    assert found["all_gather", ("fsdp",), "ici"] == LAYERS * 4 * weight * 3 / 4
    # The compiler sends the second weight's as 128 lanes, half of them empty: twice its bytes.
    assert found["reduce_scatter", ("fsdp",), "dcn"] == LAYERS * (1 + 2) * weight / 4 / 2
    # The compiler sums them over all of the slice instead, and drops what is not a device's own.
    assert found["all_reduce", ("fsdp",), "ici"] == LAYERS * 2 * weight * 2 * 3 / 4


def test_every_kind_of_transfer_between_slices(profiled: Profiled) -> None:
    # context is 2 inside and 2 across; each device has 4 sequences of 1024 tokens of 1024 numbers.
    own = 4 * 1024 * 1024 * 2 * 2
    across = {(kind, axes): sent for (kind, axes, level), sent in profiled("across").moved().items() if level == "dcn"}
    piece = 4 * 1024 * 1024 * 2
    assert across == {
        ("permute", ("context",)): piece,
        ("all_to_all", ("context",)): 2 * piece / 2,
        ("all_gather", ("context",)): piece,
        ("reduce_scatter", ("context",)): own / 2,
    }


def test_hops_of_a_ring_and_exchanges(profiled: Profiled) -> None:
    # 2 sequences of 1024 tokens of 1024 numbers in bf16 go round: 4 hops in each of 4 layers, forward, again, back.
    piece = 2 * 1024 * 1024 * 2
    found = moved(profiled, "ring")
    assert found["permute", ("context",), "ici"] == 4 * 4 * 3 * piece
    # One exchange each way forward, once more the first, both backward: half of it goes to the other of two.
    assert found["all_to_all", ("expert",), "ici"] == 4 * 5 * piece / 2
    # The gradient of the weight is summed everywhere and sliced, not scattered: twice the bytes, found as it is.
    weight = 1024 * 1024 * 2
    loss = 4
    assert found["all_reduce", ("fsdp", "context", "expert"), "ici"] == (4 * weight + loss) * 2 * 15 / 16
    assert found["all_gather", ("fsdp", "context", "expert"), "ici"] == 4 * 2 * weight * 15 / 16


def test_a_collective_that_fusions_carry_along_counts_once(profiled: Profiled) -> None:
    # In the text an all-gather stands in its start, in the matmul that runs beside it, and in its done.
    ops = {op.name: op for op in profiled("layers").ops}
    start = ops["async-collective-start.1"]
    assert (start.category, start.axes, start.count) == ("all_gather", ("tensor",), LAYERS)
    assert "fusion.107" in start.overlaps_with
    assert ops["fusion.107"].category == "matmul"
    assert start.exposed_s < start.seconds


def test_collectives_on_a_sparse_core_overlap(profiled: Profiled) -> None:
    ops = {op.name: op for op in profiled("sparsecore").ops}
    starts = [op for name, op in ops.items() if name.endswith("call-start")]
    assert sorted((op.category, op.axes, op.count) for op in starts) == [
        ("all_gather", ("fsdp",), 4),
        ("all_gather", ("fsdp",), 4),
        ("all_reduce", ("tensor",), 4),
        ("all_reduce", ("tensor",), 4),
    ]
    assert any(op.exposed_s < op.seconds for op in starts)


def test_an_all_reduce_whose_fusion_keeps_a_slice_is_a_reduce_scatter() -> None:
    text = """HloModule m, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%all-reduce-scatter (p: bf16[64,128]) -> bf16[16,128] {
  %p = bf16[64,128] parameter(0)
  %r = bf16[64,128] all-reduce(%p), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
  %z = s32[] constant(0)
  ROOT %s = bf16[16,128] dynamic-slice(%r, %z, %z), dynamic_slice_sizes={16,128}
}

ENTRY %main (p: bf16[64,128]) -> bf16[16,128] {
  %p = bf16[64,128] parameter(0)
  ROOT %f = bf16[16,128] fusion(%p), kind=kCustom, calls=%all-reduce-scatter
}
"""
    from asap_ray.compiler.timeline import profile_of
    from tests.compiler.conftest import calibrated, planned

    problem, plan = planned("v5e:2x2", "fsdp=4")
    profile = profile_of(parse(text), problem, plan, calibrated(problem))
    assert profile.moved() == {("reduce_scatter", ("fsdp",), "ici"): 64 * 128 * 2 * 3 / 4}


def test_permutes_know_their_direction() -> None:
    assert collectives.ascends("source_target_pairs={{0,1},{1,2},{2,3},{3,0}}, x=1") is True
    assert collectives.ascends("source_target_pairs={{0,3},{1,0},{2,1},{3,2}}, x=1") is False
    assert collectives.ascends("source_target_pairs={}") is None


def test_pairs_of_a_device_with_itself_send_nothing() -> None:
    program = parse(
        """HloModule m, num_partitions=2

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8] parameter(0)
  ROOT %c = f32[8] collective-permute(%p), channel_id=1, source_target_pairs={{0,0},{1,1}}
}
"""
    )
    entry = program.computations["main"]
    found = collective(DeviceMesh(Plan(ici=(1, 2, 1, 1, 1, 1)), 2), entry, entry.root)
    assert found.axes == ()


def test_an_all_reduce_of_which_each_rank_reads_its_part_serves_as_a_reduce_scatter() -> None:
    # Two consumers take the same quarter, inside of fusions; the compiler sums all of it everywhere all the same.
    text = """HloModule m, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%own (r: bf16[64,128], i: s32[]) -> bf16[16,128] {
  %r = bf16[64,128] parameter(0)
  %i = s32[] parameter(1)
  %z = s32[] constant(0)
  %s = bf16[16,128] dynamic-slice(%r, %i, %z), dynamic_slice_sizes={16,128}
  ROOT %n = bf16[16,128] negate(%s)
}

ENTRY %main (p: bf16[64,128], i: s32[]) -> bf16[16,128] {
  %p = bf16[64,128] parameter(0)
  %i = s32[] parameter(1)
  %r = bf16[64,128] all-reduce(%p), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
  %a = bf16[16,128] fusion(%r, %i), kind=kLoop, calls=%own
  %b = bf16[16,128] fusion(%r, %i), kind=kLoop, calls=%own
  ROOT %c = bf16[16,128] add(%a, %b)
}
"""
    from asap_ray.compiler.timeline import profile_of
    from tests.compiler.conftest import calibrated, planned

    problem, plan = planned("v5e:2x2", "fsdp=4")
    profile = profile_of(parse(text), problem, plan, calibrated(problem))
    scattered = 64 * 128 * 2 * 3 / 4
    assert profile.moved() == {("all_reduce", ("fsdp",), "ici"): 2 * scattered}
    assert profile.moved(as_needed=True) == {("reduce_scatter", ("fsdp",), "ici"): scattered}
    assert profile.avoidable_wire_bytes == scattered
    assert profile.unexpected({("reduce_scatter", ("fsdp",), "ici"): scattered}) == {}


def test_so_does_an_all_reduce_of_several_arrays_if_all_are_cut() -> None:
    text = """HloModule m, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

ENTRY %main (p: bf16[64,128], q: bf16[8,128], i: s32[]) -> (bf16[16,128], bf16[KEPT,128]) {
  %p = bf16[64,128] parameter(0)
  %q = bf16[8,128] parameter(1)
  %i = s32[] parameter(2)
  %z = s32[] constant(0)
  %r = (bf16[64,128], bf16[8,128]) all-reduce(%p, %q), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
  %r0 = bf16[64,128] get-tuple-element(%r), index=0
  %a = bf16[16,128] dynamic-slice(%r0, %i, %z), dynamic_slice_sizes={16,128}
  %r1 = bf16[8,128] get-tuple-element(%r), index=1
  %b = bf16[KEPT,128] dynamic-slice(%r1, %i, %z), dynamic_slice_sizes={KEPT,128}
  ROOT %t = (bf16[16,128], bf16[KEPT,128]) tuple(%a, %b)
}
"""
    from asap_ray.compiler.timeline import profile_of
    from tests.compiler.conftest import calibrated, planned

    problem, plan = planned("v5e:2x2", "fsdp=4")
    for kept, serves_as in ((2, "reduce_scatter"), (4, "")):
        profile = profile_of(parse(text.replace("KEPT", str(kept))), problem, plan, calibrated(problem))
        (op,) = profile.collectives
        assert (op.wire_bytes, op.serves_as) == (2 * (64 + 8) * 128 * 2 * 3 / 4, serves_as)
