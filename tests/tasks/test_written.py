"""Plans that users write: whole, in part, and in files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asap_ray.errors import ConfigError
from asap_ray.tasks.written import baseline_line, pins


def test_a_size_alone_is_a_total_and_a_pair_is_inside_and_across() -> None:
    assert pins("fsdp=8x2 tensor=4 remat=full", "plan") == {"fsdp_ici": 8, "fsdp_dcn": 2, "tensor": 4, "remat": "full"}


def test_what_is_left_out_is_open(command) -> None:
    """tensor=2 alone leaves the other two of four devices to whichever axis is fastest."""
    ended = command("task=explain", "+model=tiny", "hardware=v5e-4", "plan=tensor=2", "output=json", "run_dir=run")
    assert ended.status == 0
    best = json.loads(ended.out)["best"]
    assert best["plan"]["tensor"] == 2
    free = command(
        "task=explain", "+model=tiny", "hardware=v5e-4", "space.fix={tensor: 2}", "output=json", "run_dir=run"
    )
    assert best["line"] == json.loads(free.out)["best"]["line"]


def test_a_baseline_may_be_a_part_of_a_plan_too(command) -> None:
    ended = command("+model=tiny", "hardware=v5e-4", "baseline=tensor=2", "output=json", "run_dir=run")
    assert json.loads(ended.out)["baseline"]["plan"]["tensor"] == 2


@pytest.mark.parametrize("content", ["root:*:20228:0:99999", "# a comment", "[]", "<html>", '{"line": "tensr=2"}'])
def test_a_file_without_a_plan_is_named_and_not_shown(tmp_path: Path, content: str) -> None:
    file = tmp_path / "secret"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        baseline_line(str(file))
    assert "secret: this file holds no plan" in str(caught.value)
    assert content not in str(caught.value)


def test_a_gpt2_config_trains_on_no_more_than_its_positions(command, tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 512, "n_positions": 1024}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ended = command(f"+model.hf_config={tmp_path}/config.json", "hardware=v5e-4", "output=json", "run_dir=run")
    assert ended.status == 0, ended.err
