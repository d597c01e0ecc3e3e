"""Which recipes are legal for a plan, by rules that say why others are not, and which are one gene away."""

from __future__ import annotations

import pytest

from asap_ray.genes import broken_gene, gene_moves
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.recipe import PLAIN, PROGRAM_GENES, Genes, Recipe
from tests.problems import make_problem

ALL = Genes(flags=("vmem", "sync"), others=PROGRAM_GENES)
FSDP = "fsdp=16@4.4 micro_batch=1 accumulation=1 remat=full"


def llama() -> Problem:
    return make_problem("v5e-16", "ours", "llama3_8b", batch=16, seq_len=4096)


@pytest.mark.parametrize(
    ("line", "recipe", "told"),
    [
        (FSDP, "hold=33", "hold: hold=33: the model has 32 layers"),
        ("data=16@4.4 micro_batch=1 accumulation=1 remat=full", "hold=4", "hold: hold=4: the plan shards no weights"),
        (FSDP, "save=scores", "save: save=scores: full leaves attn_in, query"),
        ("fsdp=16@4.4 micro_batch=1 accumulation=1 remat=save_qkv", "save=query", "save: save=query: save_qkv leaves"),
        (FSDP, "save=act/32", "save: save=…/32: the model has 32 layers"),
        (FSDP, "save=act+act", "save: save: each tensor once"),
        ("pipeline=4@4.1 fsdp=4@1.4 micro_batch=1 accumulation=4 schedule=gpipe remat=full", "hold=2", "groups: "),
        (FSDP, "block_q=384", "blocks: blocks: 384 is no multiple of 128 that divides 4096"),
        (FSDP, "block_kv=4096", "blocks: blocks: 4096 is no multiple"),
        (FSDP.replace("remat", "attention=unfused remat"), "block_q=512", "blocks: blocks: only splash"),
        (FSDP, "odd", "flags: odd: the search has vmem, sync"),
    ],
)
def test_a_recipe_that_is_not_legal_is_told_why(line: str, recipe: str, told: str) -> None:
    fault = broken_gene(llama(), Plan.parse(line), Recipe.parse(recipe), ALL)
    assert fault is not None
    assert ": ".join(fault).startswith(told)


def test_what_is_not_to_be_varied_is_refused() -> None:
    fault = broken_gene(llama(), Plan.parse(FSDP), Recipe(hold=4), Genes(flags=("vmem",)))
    assert fault == ("vary", "hold is not among search.vary")


def test_some_layers_alone_need_layers_that_are_alike() -> None:
    gemma = make_problem("v5e-16", "ours", "gemma2_2b", batch=16, seq_len=4096)
    assert (broken_gene(gemma, Plan.parse(FSDP), Recipe(hold=4), ALL) or ("", ""))[0] == "groups"
    assert broken_gene(gemma, Plan.parse(FSDP), Recipe(hold=26), ALL) is None


def test_moves_are_one_gene_away_legal_and_in_order() -> None:
    plan = Plan.parse(FSDP)
    found = list(gene_moves(llama(), plan, PLAIN, ALL))
    lines = [each.line for each in found]
    assert lines[:6] == ["vmem", "sync", "hold=8", "hold=16", "hold=24", "hold=32"]
    assert lines[6:10] == ["save=attn_in/8", "save=attn_in/16", "save=attn_in/24", "save=attn_in"]
    assert lines[-8:] == [f"{gene}={n}" for gene in ("block_q", "block_kv") for n in (256, 512, 1024, 2048)]
    assert len(set(lines)) == len(lines) == 2 + 4 + 8 * 4 + 8, "2 bundles, 4 holds, 8 tensors, 2 x 4 tiles"
    assert all(broken_gene(llama(), plan, each, ALL) is None for each in found)
    back = [each.line for each in gene_moves(llama(), plan, Recipe(flags="vmem", hold=8), ALL)]
    assert "hold=8" in back
    assert "vmem" in back


def test_nothing_to_vary_is_no_move() -> None:
    assert not list(gene_moves(llama(), Plan.parse(FSDP), PLAIN, Genes()))
