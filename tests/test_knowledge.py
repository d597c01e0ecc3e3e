"""Cards are data in a small vocabulary: each one that is carried can be read, and what is not in it is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from asap_ray.errors import ConfigError
from asap_ray.knowledge import axes_of, card_from_mapping, fired, load_cards
from tests.problems import CHIPS

CARD: dict[str, Any] = {
    "when": ["bound is compute", "context above 1"],
    "moves": [{"context": "half", "data": "double"}],
    "why": "because",
    "source": "a paper",
}


def test_cards_are_carried_and_each_says_why_and_who() -> None:
    cards = load_cards()
    assert len(cards) >= 40
    assert len({card.name for card in cards}) == len(cards)
    assert all(card.why and card.source and card.moves and card.when for card in cards)


def test_a_source_is_a_paper_or_a_page_that_can_be_opened() -> None:
    for card in load_cards():
        assert re.search(r"arXiv \d{4}\.\d{5}|https://|MLSys|NVIDIA/Megatron-LM|jax-ml.github.io", card.source), (
            card.name
        )
        assert len(card.why) < 400


# Ridge points by the datasheets that the package carries: FLOPs a byte, or tokens that hide a gather over all axes.
@pytest.mark.parametrize(
    ("chip", "axes", "devices", "card"),
    [("v5e", 2, 1, 985), ("v6e", 2, 1, 2300), ("tpu7x", 3, 2, 1920)],
)
def test_tokens_that_hide_gathers_follow_from_the_datasheet(chip: str, axes: int, devices: int, card: int) -> None:
    sheet = CHIPS[chip]
    tokens = sheet.peak_flops["bf16"] / (axes * 2 * sheet.link_bytes_per_s) / devices
    assert tokens == pytest.approx(card, rel=0.01)
    cards = {each.name: each for each in load_cards()}
    assert ("tokens", (float(card),)) in [(c.field, c.values) for c in cards[f"{chip}_tokens_hide_gathers"].when]


def test_the_books_figure_of_v5p_is_the_cards() -> None:
    # jax-ml.github.io/scaling-book/training: 4.59e14 FLOP/s over 1.8e11 bytes/s of an axis, three of them.
    tokens = 4.59e14 / 1.8e11 / 3
    assert tokens == pytest.approx(850, rel=0.001)
    (card,) = [each for each in load_cards() if each.name == "v5p_tokens_hide_gathers"]
    assert ("tokens", (850.0,)) in [(c.field, c.values) for c in card.when]


def test_asaps_three_moves_are_cards() -> None:
    cards = {card.name: card for card in load_cards()}
    assert cards["compute_context_to_data"].moves[0] == {"context": "half", "data": "double"}
    assert cards["hbm_more_tensor"].moves[0] == {"tensor": "double", "data": "half"}
    assert cards["ici_tensor_to_data"].moves[0] == {"tensor": "half", "data": "double"}
    for name in ("compute_context_to_data", "hbm_more_tensor", "ici_tensor_to_data"):
        assert "2511.03844" in cards[name].source


@pytest.mark.parametrize(
    ("when", "facts", "fires"),
    [
        (["bound is compute"], {"bound": "compute"}, True),
        (["bound is compute"], {"bound": "hbm"}, False),
        (["bound is compute"], {}, False),
        (["bound not compute"], {"bound": "hbm"}, True),
        (["bound not compute"], {}, False),
        (["schedule in gpipe, 1f1b"], {"schedule": "1f1b"}, True),
        (["schedule in gpipe, 1f1b"], {"schedule": "none"}, False),
        (["tensor above 1"], {"tensor": 2}, True),
        (["tensor above 1"], {"tensor": 1}, False),
        (["share.fsdp below 0.1"], {"share.fsdp": 0.05}, True),
        (["tensor above 1", "hbm below 0.9"], {"tensor": 2, "hbm": 0.95}, False),
    ],
)
def test_a_card_fires_where_all_its_conditions_hold(when: list[str], facts: dict[str, Any], fires: bool) -> None:
    assert card_from_mapping("x", {**CARD, "when": when}).fires(facts) is fires


def test_an_exception_keeps_a_card_from_firing() -> None:
    card = card_from_mapping("x", {**CARD, "when": ["bound is ici"], "exceptions": ["hbm above 0.95"]})
    assert card.fires({"bound": "ici", "hbm": 0.9})
    assert not card.fires({"bound": "ici", "hbm": 0.96})


def test_the_more_specific_card_comes_first() -> None:
    plain = card_from_mapping("a", {**CARD, "when": ["bound is compute"]})
    special = card_from_mapping("b", CARD)
    assert fired([plain, special], {"bound": "compute", "context": 2}) == [special, plain]


def test_an_axis_is_named_at_either_level() -> None:
    assert axes_of({"fsdp_dcn": "1", "data": "double", "remat": "heavier"}) == {"fsdp", "data"}


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"when": ["bounds is compute"]}, "no such fact"),
    ({"when": ["bound is cpu"]}, "allowed: compute"),
    ({"when": ["bound above 1"]}, "numbers are above or below"),
    ({"when": ["tensor is 2"]}, "numbers are above or below"),
    ({"when": ["tensor above many"]}, "a number"),
    ({"when": ["tensor"]}, "allowed: a fact, then"),
    ({"moves": [{"tensors": "half"}]}, "no such column"),
    ({"moves": [{"tensor": "thirds"}]}, "allowed: half, double"),
    ({"moves": [{"sequence_parallel": "maybe"}]}, "allowed: true, false"),
    ({"moves": [{"schedule": "double"}]}, "allowed: none"),
    ({"when": ["chip is tpus"]}, "allowed: tpu, gpu"),
    ({"when": ["wrapped is maybe"]}, "allowed: true, false"),
    ({"moves": [{"xla": "../flags"}]}, "the name of a bundle of flags"),
    ({"moves": [{"xla": "async", "tensor": "half"}]}, "alone in its move"),
    ({"moves": [{}]}, "a mapping of columns"),
    ({"why": ""}, "missing: why"),
    ({"times": 5}, "a whole number from 1 to 4"),
    ({"times": True}, "a whole number from 1"),
    ({"code": "import os"}, "unknown field"),
]


@pytest.mark.parametrize(("changes", "words"), MISTAKES, ids=[words for _, words in MISTAKES])
def test_what_is_not_in_the_vocabulary_is_refused_in_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        card_from_mapping("mine", {**CARD, **changes})
    assert words in str(error.value)
    assert "cards.mine" in str(error.value)
    assert "\n" not in str(error.value)


def test_cards_of_a_folder_are_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("when: [bound is hbm]\nmoves: [{tensor: double}]\nwhy: w\nsource: s\n")
    (tmp_path / "a.yaml").write_text(
        "when: [bound is ici]\nmoves: [{sequence_parallel: true, tensor_dcn: 1}]\nwhy: w\nsource: s\n"
    )
    cards = load_cards(tmp_path)
    assert [card.name for card in cards] == ["a", "b"]
    assert cards[0].moves == ({"sequence_parallel": "true", "tensor_dcn": "1"},)
