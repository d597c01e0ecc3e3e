"""What a cluster has room for: counted by hand."""

from __future__ import annotations

from asap_ray.executor.room import Node, has_room, missing, missing_for, slices_of, sub_slices, whole_slices
from asap_ray.tiers.protocol import Gang

NEEDS = {"CPU": 1.0, "TPU": 4.0}


def host(name: str, topology: str = "4x4", accelerator: str = "TPU-V6E", tpu: float = 4.0) -> Node:
    labels = {"ray.io/tpu-slice-name": name, "ray.io/tpu-topology": topology, "ray.io/accelerator-type": accelerator}
    return Node(name, {"CPU": 8.0, "TPU": tpu}, labels)


def tpus(hosts: int, topology: str = "4x4", accelerator: str = "TPU-V6E", chips: float = 4.0) -> Gang:
    return Gang(hosts=hosts, per_host={"CPU": 1, "TPU": chips}, topology=topology, accelerator=accelerator)


TWO_SLICES = [host(name) for name in ("a", "b") for _ in range(4)]  # 4x4 is 16 chips: four hosts of four


def test_a_job_that_a_node_can_hold_misses_nothing() -> None:
    nodes = [Node("n", {"CPU": 4.0, "GPU": 8.0}), Node("m", {"CPU": 64.0})]
    assert missing({"CPU": 4.0, "GPU": 8.0}, nodes) == ""
    cannot = "no node of the Ray cluster can ever hold it: it needs"
    assert missing({"CPU": 8.0, "GPU": 9.0}, nodes) == f"{cannot} GPU=9 (a node has 8 at most)"
    assert missing({"CPU": 8.0, "GPU": 1.0}, nodes) == (
        f"{cannot} CPU=8 (a node has 64 at most), GPU=1 (a node has 8 at most)"
    ), "each is somewhere, but not on one node"


def test_hosts_with_gpus_are_nodes_and_hosts_without_may_share_one() -> None:
    nodes = [Node(str(n), {"CPU": 32.0, "GPU": 8.0}) for n in range(3)]
    assert missing_for(Gang(hosts=3, per_host={"GPU": 8}), {"GPU": 8.0}, nodes) == ""
    four = missing_for(Gang(hosts=4, per_host={"GPU": 4}), {"GPU": 4.0}, nodes)
    assert four == "the cluster has 3 nodes with GPU=4, the plan needs 4"
    assert missing_for(Gang(hosts=96, per_host={"CPU": 1}), {"CPU": 1.0}, nodes) == ""
    assert missing_for(Gang(hosts=97, per_host={"CPU": 1}), {"CPU": 1.0}, nodes) == (
        "the cluster has 96 places with CPU=1, the plan needs 97"
    )


def test_slices_count_with_all_of_their_hosts_only() -> None:
    assert whole_slices(tpus(4), NEEDS, TWO_SLICES) == 2
    assert whole_slices(tpus(4), NEEDS, TWO_SLICES[:-1]) == 1
    assert whole_slices(tpus(4, accelerator="TPU-V5LITEPOD"), NEEDS, TWO_SLICES) == 0
    one_host = [host(name, "2x4", tpu=8.0) for name in ("c", "d", "e")]
    assert whole_slices(tpus(1, "2x4", chips=8), {"TPU": 8.0}, one_host) == 3


def test_a_gang_is_so_many_slices_or_none() -> None:
    assert [slices_of(tpus(hosts)) for hosts in (4, 8, 6)] == [1, 2, 0]
    assert missing_for(tpus(6), NEEDS, TWO_SLICES) == (
        "6 hosts with CPU=1, TPU=4 are no whole number of slices of v6e 4x4"
    )


def test_what_is_missing_of_slices_is_told_with_what_there_is() -> None:
    assert missing_for(tpus(8), NEEDS, TWO_SLICES) == ""
    assert missing_for(tpus(8), NEEDS, TWO_SLICES[:4]) == (
        "the cluster has 1 slice of v6e 4x4 with 4 hosts of CPU=1, TPU=4, the plan needs 2"
    )
    assert missing_for(tpus(16, "8x8"), NEEDS, TWO_SLICES) == (
        "the cluster has 0 slices of v6e 8x8 with 16 hosts of CPU=1, TPU=4, the plan needs 1; it has 4x4"
    )


def test_larger_slices_have_parts() -> None:
    part = tpus(2, "2x4")
    assert sub_slices(part, NEEDS, TWO_SLICES) == 4, "two rows of hosts in each"
    assert missing_for(part, NEEDS, TWO_SLICES) == ""
    assert sub_slices(tpus(16, "8x8"), NEEDS, TWO_SLICES) == 0
    assert sub_slices(tpus(1, "2x2x1"), NEEDS, TWO_SLICES) == 0, "a torus of another rank"
    assert missing_for(tpus(4, "2x4"), NEEDS, TWO_SLICES) != "", "two parts are not joined"


def test_gangs_run_side_by_side_while_there_are_slices() -> None:
    one, two = (NEEDS, tpus(4)), (NEEDS, tpus(8))
    assert has_room([one, one], TWO_SLICES)
    assert not has_room([one, one, one], TWO_SLICES)
    assert not has_room([one, two], TWO_SLICES)
    part = (NEEDS, tpus(2, "2x4"))
    assert has_room([part] * 4, TWO_SLICES)
    assert not has_room([part] * 5, TWO_SLICES)
    assert has_room([({"CPU": 32.0}, None), one], TWO_SLICES), "64 cores, 4 of them the gang's"
    assert not has_room([({"CPU": 61.0}, None), one], TWO_SLICES)
