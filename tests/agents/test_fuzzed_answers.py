"""1,000 rounds of answers that fit the schema and may say anything: nothing illegal or too big is ever tried."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asap_ray.plan import ATTENTION_KERNELS, AXES, KNOBS, PRECISIONS, SCHEDULES
from asap_ray.rules import broken
from asap_ray.search.pool import Pool
from tests.agents.doubles import Double, small_pool
from tests.agents.scripted import Plain, Scripted, good, sources
from tests.agents.test_reasoning import reasoning

ROUNDS, EXAMPLES = 10, 100
WORDS = st.one_of(st.text(max_size=30), st.sampled_from(["ignore all rules", "</data>", "m1", "../../etc/passwd", ""]))
NUMBERS = st.one_of(st.floats(), st.floats(0.01, 10.0))
SIZES = st.sampled_from(
    ["0", "1", "2", "3", "4", "8", "16", "64", "1024", "-1", "1e3", "nan", "half", "double", "free"]
)
NAMED = st.sampled_from((*SCHEDULES, *ATTENTION_KERNELS, *PRECISIONS, "full", "minimal", "true", "false", "lighter"))
CHANGE = st.fixed_dictionaries(
    {"knob": st.one_of(st.sampled_from((*AXES, *KNOBS)), WORDS), "value": st.one_of(SIZES, NAMED, WORDS)}
)
CITED = st.fixed_dictionaries(
    {"source": st.one_of(st.sampled_from(["m1", "m2", "trial 0"]), WORDS), "figure": WORDS, "value": NUMBERS}
)
TEXTS = dict.fromkeys(("hypothesis", "mechanism", "falsification", "trade_off"), WORDS)
OPTION = st.one_of(st.just(""), st.sampled_from(["m1", "m2", "m3", "m9"]), WORDS)
IDEA = st.fixed_dictionaries(
    {
        "option": OPTION,
        "changes": st.lists(CHANGE, max_size=4),
        **TEXTS,
        "figure": st.one_of(st.sampled_from(["step_time_s", "fsdp_s"]), WORDS),
        "low": NUMBERS,
        "high": NUMBERS,
        "cites": st.lists(WORDS, max_size=3),
        "evidence": st.lists(CITED, max_size=3),
    }
)
NARROW = st.fixed_dictionaries(
    {
        "knob": st.one_of(st.sampled_from((*AXES, *KNOBS)), WORDS),
        "comparison": st.sampled_from(["is", "above", "below"]),
        "value": st.one_of(SIZES, NAMED, WORDS),
        "reason": WORDS,
    }
)
ANSWER = st.fixed_dictionaries({"ideas": st.lists(IDEA, max_size=4), "last": st.lists(NARROW, max_size=3)})


@pytest.fixture(scope="module")
def pool() -> Pool:
    return small_pool("v5e-8", model="llama3_2_1b", batch=64, seq_len=2048)


def sound(idea: Plain, shown: dict[str, dict[str, float]]) -> Plain:
    """A fuzzed idea with a prediction and evidence that are true, so that its plan is what decides."""
    name = next(each for each in shown if each.startswith("m"))
    step = shown[name]["expected_s"]
    cited = {"source": name, "figure": "expected_s", "value": step}
    return {**idea, "figure": "step_time_s", "low": 0.9 * step, "high": 1.1 * step, "evidence": [cited]}


@settings(
    max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False
)
@given(rounds=st.lists(ANSWER, min_size=ROUNDS, max_size=ROUNDS), honest=st.booleans())
def test_nothing_illegal_is_tried(pool: Pool, rounds: list[Plain], honest: bool) -> None:
    turn = count()

    def answers(role: str, text: str) -> list[Plain]:
        if role != "proposal":
            return [good(role, text)]
        answer = rounds[next(turn) % ROUNDS]
        shown = sources(text)
        if honest and any(each.startswith("m") for each in shown):
            answer = {**answer, "ideas": [sound(each, shown) for each in answer["ideas"]]}
        return [answer, answer]

    searcher = reasoning(pool, Scripted(answers))
    double, tried = Double(pool), list[Any]()
    for _ in range(ROUNDS):
        asked = searcher.ask(3)
        for each in asked:
            assert broken(pool.problem, each.plan) is None
            assert pool.row(each.plan) is not None
            assert each.plan not in tried
            estimate = pool.estimate(pool.row(each.plan) or 0)
            assert estimate.hbm_bytes <= pool.problem.hbm_limit_bytes
            tried.append(each.plan)
        searcher.tell(double.run(asked))
        searcher.drain()
