"""Recipes: what is written in one line is read back, and no word that is no gene is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asap_ray.recipe import PLAIN, Recipe

RECIPES = st.builds(
    Recipe,
    flags=st.sampled_from(["", "vmem", "async"]),
    hold=st.integers(0, 99),
    block_q=st.sampled_from([0, 256, 512]),
    block_kv=st.sampled_from([0, 1024]),
) | st.builds(
    Recipe, save=st.sampled_from([("act",), ("gate_up", "query")]), save_layers=st.sampled_from([0, 7]), hold=st.just(3)
)


@given(RECIPES)
def test_a_line_is_read_back(recipe: Recipe) -> None:
    assert Recipe.parse(recipe.line) == recipe
    assert bool(recipe) == bool(recipe.line)


def test_a_line_as_written_by_hand() -> None:
    recipe = Recipe(flags="vmem", hold=8, save=("gate_up", "act"), save_layers=16, block_q=512)
    assert recipe.line == "vmem hold=8 save=gate_up+act/16 block_q=512"
    assert recipe.program == Recipe(hold=8, save=("gate_up", "act"), save_layers=16, block_q=512)
    assert (PLAIN.under("async"), Recipe(hold=2).under("async")) == ("async", "async hold=2")
    assert recipe.under("async") == recipe.line


@pytest.mark.parametrize("line", ["hold=2 hold=3", "rm -rf", "code=1", "save_layers=2", "hold=x"])
def test_what_is_no_gene_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"gene|invalid literal"):
        Recipe.parse(line)
