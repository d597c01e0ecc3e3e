from typing import Any

import pytest

from asap_ray.report.roofline_chart import device_bytes_per_s, points, roofline_chart, roofs


def test_a_device_on_a_torus_has_two_links_an_axis(factory: Any) -> None:
    # v5p: 3 axes of 2 links of 90 GB/s; the axis of one chip in a 4x4x1 slice has none
    assert device_bytes_per_s(factory.slice()) == {"hbm": 2.765e12, "ici": 540e9}
    assert device_bytes_per_s(factory.slice("v5p-32", 16))["ici"] == 360e9
    assert device_bytes_per_s(factory.slice(slices=2))["dcn"] == 25e9


def test_the_roof_above_a_point_is_what_its_resource_alone_allows(factory: Any) -> None:
    answer = factory.answer()
    first = {record["roof"]: record for record in points(answer.slices[0], answer.workload) if record["plan"] == "#1"}
    flops = answer.workload.model_flops / 64
    # HBM is busy 25 of 100 s: alone it would allow four times the rate that is reached
    assert first["HBM"]["reached"] == pytest.approx(flops / 100 / 1e12)
    assert first["HBM"]["intensity"] * 2.765e12 == pytest.approx(4 * flops / 100)
    assert first["links inside a slice"]["intensity"] * 540e9 == pytest.approx(flops / 40)


def test_roofs_bend_at_their_ridges(factory: Any) -> None:
    lines = roofs(factory.slice(), 459e12, 50e12, 1e4)
    hbm = [(record["intensity"], record["height"]) for record in lines if record["roof"] == "HBM"]
    assert hbm == [
        (pytest.approx(50e12 / 2.765e12), pytest.approx(50)),
        (pytest.approx(166.0, abs=0.1), pytest.approx(459)),
        (1e4, pytest.approx(459)),
    ]


def test_a_plan_with_nothing_on_the_wire_still_makes_a_picture(factory: Any) -> None:
    lone = factory.estimate("micro_batch=1 accumulation=1024 remat=full", 100.0, busy={"compute": 90.0})
    answer = factory.slice_answer(ranked=(lone,))
    assert points(answer, factory.answer().workload) == []
    roofline_chart(answer, factory.answer().workload)
