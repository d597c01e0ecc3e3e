"""What is said of the certificate, and its figures in the summary."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import pytest

from asap_ray.report.certified import at_most, certificate_facts, certificate_fields, tighten_rows
from asap_ray.report.summary import summary
from asap_ray.report.terminal import show


def test_both_bounds_are_said_with_their_condition_and_what_would_tighten_them(factory: Any) -> None:
    facts = dict(certificate_facts(factory.slice_answer()))
    assert facts["hard"] == (
        "if the best takes the 100 s estimated, no other legal plan that fits can be more than 25.0% faster: the "
        "lowest floor is 80.0 s (90 of 12,344 lie below the best step)"
    )
    # 100 / 82 - 1 = 21.95...%, never shown as less than it is
    assert facts["credible"] == (
        "if the best takes the 100 s estimated, each other plan, taken alone, is with 95% at most 22.0% faster: the "
        "lowest interval begins at 82.0 s (40 of 12,344 lie below the best step)"
    )
    assert facts["tighten"] == (
        "trials of #2, #3, #4 that confirm their estimates would leave the credible one at 21.4%, 20.5%, 10.0%; "
        "7 plans share the lowest floor: fewer trials do not move the hard one"
    )


def test_a_measured_best_is_no_condition(factory: Any) -> None:
    facts = dict(certificate_facts(factory.slice_answer(certificate=factory.certificate(measured=True))))
    assert facts["hard"].startswith("no other legal plan that fits can be more than 25.0% faster")
    assert facts["credible"].startswith("each other plan, taken alone, is with 95%")


def test_a_best_at_the_floor_of_all_cannot_be_beaten(factory: Any) -> None:
    facts = dict(certificate_facts(factory.slice_answer(certificate=factory.certificate(78.0))))
    assert "no other legal plan that fits can be faster: the lowest floor is 80.0 s" in facts["hard"]
    assert "is with 95% not faster: the lowest interval begins at 82.0 s" in facts["credible"]
    assert "tighten" not in facts


def test_plans_beyond_the_shown_ones_are_named_by_what_differs(factory: Any) -> None:
    answer = factory.slice_answer()
    facts = dict(certificate_facts(dataclasses.replace(answer, ranked=answer.ranked[:3])))
    assert "trials of #2, #3, data=2@2.1.1 fsdp=8@2.4.1 " in facts["tighten"]


def test_without_a_certificate_nothing_is_said(factory: Any) -> None:
    assert certificate_facts(factory.slice_answer(certificate=None)) == []
    assert certificate_fields(None) is None
    stream = io.StringIO()
    show(factory.answer(factory.slice_answer(ranked=(), diagnosis=None, certificate=None)), "plain", stream)
    assert "How much better" not in stream.getvalue()


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.25, "25.0%"), (0.2195, "22.0%"), (0.21901, "22.0%"), (0.0, "0.0%"), (10.0, "1,000%"), (420.97001, "42,098%")],
)
def test_a_bound_is_never_shown_smaller_than_it_is(share: float, text: str) -> None:
    assert at_most(share) == text


def test_the_table_leaves_out_trials_that_move_nothing(factory: Any) -> None:
    rows = list(tighten_rows(factory.certificate()))
    assert [row[0] for row in rows] == ["credible"] * 3
    assert rows[0] == ("credible", "102 s", "80.0 s", "82.0 s", "21.4%", factory.lines[1])


def test_the_summary_has_the_exact_figures(factory: Any) -> None:
    found = summary(factory.answer())["certificate"]
    assert found["hard"] == {"bound_s": 80.0, "at_most_faster_percent": 25.0, "contenders": 90, "at_bound": 7}
    assert found["credible"]["at_most_faster_percent"] == pytest.approx(100 * (100 / 82 - 1))
    assert found["credible"]["probability"] == pytest.approx(0.95)
    assert [each["bound"] for each in found["tighten"]] == ["credible"] * 3 + ["hard"] * 3
    assert found["tighten"][0]["line"] == factory.lines[1]
    assert found["tighten"][0]["at_most_faster_percent"] == pytest.approx(21.4)
