"""BM25 against a calculation by hand."""

from __future__ import annotations

import math

import pytest

from asap_ray.words import scores, words_in


def test_words_are_lower_case_letters_digits_and_underscores() -> None:
    assert words_in("Bound by ICI: all_to_all 1.5 s") == ["bound", "by", "ici", "all_to_all", "1", "5", "s"]


def test_scores_are_those_of_a_calculation_by_hand() -> None:
    texts = ["tensor traffic", "tensor tensor bubble bubble", "memory"]
    # Lengths 2, 4, 1, mean 7/3; "tensor" in 2 of 3 texts, "memory" in 1, "nothing" in none.
    tensor, memory = math.log(1 + 1.5 / 2.5), math.log(1 + 2.5 / 1.5)
    norms = [0.25 + 0.75 * length / (7 / 3) for length in (2, 4, 1)]
    by_hand = [
        tensor * 1 * 2.2 / (1 + 1.2 * norms[0]),
        tensor * 2 * 2.2 / (2 + 1.2 * norms[1]),
        memory * 1 * 2.2 / (1 + 1.2 * norms[2]),
    ]
    assert scores("Tensor memory nothing", texts) == pytest.approx(by_hand)


def test_a_word_said_twice_in_a_query_counts_once() -> None:
    texts = ["tensor traffic", "bubble"]
    assert scores("tensor tensor", texts) == scores("tensor", texts)


def test_what_has_no_words_scores_nothing() -> None:
    assert scores("tensor", []) == []
    assert scores("", ["tensor"]) == scores("tensor", [""]) == [0.0]
