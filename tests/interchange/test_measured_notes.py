"""What the notes of a row, and the published scripts behind it, say of how it ran."""

from __future__ import annotations

import pytest

from asap_ray.chip import chip_from_mapping
from asap_ray.interchange.measured import Mapper, MeasuredRow
from asap_ray.interchange.measured_tables import read_table
from asap_ray.settings import data_dir, load_group, read_settings
from asap_ray.stack import stack_from_mapping

TABLES = data_dir("knowledge") / "measured"


@pytest.fixture(scope="module")
def mapped() -> dict[str, MeasuredRow]:
    mapper = Mapper(
        chips={name: chip_from_mapping(given) for name, given in load_group("hardware").items()},
        stacks={name: stack_from_mapping(given) for name, given in load_group("stack").items()},
        models=load_group("model"),
        defaults=read_settings(TABLES / "defaults.yaml"),
    )
    rows = [mapper.map(row) for row in read_table(TABLES / "training.parquet")]
    return {row.id: row for row in rows if isinstance(row, MeasuredRow)}


@pytest.mark.parametrize(
    ("name", "chip", "stack"),
    [
        ("torchtitan-001", "h100-96", "torchtitan_eager"),  # notes: eager; H100 96GB HBM2e, 500 W
        ("torchtitan-002", "h100-96", "torchtitan"),  # notes: torch.compile
        ("torchtitan-036", "a100", "torchtitan"),
        ("mbridge-010", "gb200", "bridge_fused"),  # notes: container 26.08
        ("mbridge-093", "gb200", "bridge"),  # notes: container 26.04.01
        ("mbridge-053", "gb300", "bridge"),  # Kimi K2 in container 26.06, which the release notes do not name
        ("deepseek-001", "h800", "hai"),
    ],
)
def test_notes_say_which_chip_and_trainer_ran(mapped: dict[str, MeasuredRow], name: str, chip: str, stack: str) -> None:
    assert (mapped[name].problem.slice.chip.name, mapped[name].problem.stack.name) == (chip, stack)


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        # What the published recipes of tpu-recipes keep (run_recipe.sh of each); their table says "custom" alone.
        ("ironwood-002", "offload_input"),
        ("ironwood-012", "offload_input_mlpwo"),
        ("ironwood-017", "offload_input"),
        ("ironwood-027", "save_qkv_context"),
        ("ironwood-038", "offload_input"),
        ("v5p-001", "offload_input_out"),
        ("v5p-005", "offload_input"),
        # Activations of 96 layers, 12288 wide, of six sequences of 2048 do not stay on 80 GB.
        ("pax-005", "full"),
    ],
)
def test_recipes_keep_what_their_scripts_say(mapped: dict[str, MeasuredRow], name: str, policy: str) -> None:
    row = mapped[name]
    assert row.plan.remat == policy
    assert any(reason.startswith("remat: ") for reason in row.inferred)
