"""An answer with figures worked out by hand: a made-up slice of 64 chips, and plans whose step times are given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asap_ray.architecture import Architecture
from asap_ray.certificate import Bound, Certificate, Trial
from asap_ray.chip import Chip
from asap_ray.diagnosis import Diagnosis
from asap_ray.hardware import Slice
from asap_ray.layers import Attention, FeedForward
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.rates import IciAxis
from asap_ray.report.answer import Answer, SliceAnswer
from asap_ray.workload import Workload

LINES = (
    "fsdp=16@4.4.1 tensor=4@1.1.4 micro_batch=2 accumulation=8 remat=full",
    "fsdp=8@4.2.1 tensor=8@1.2.4 micro_batch=4 accumulation=8 remat=full",
    "fsdp=16@4.4.1 context=4@1.1.4 micro_batch=2 accumulation=8 sequence_parallel=true remat=attention",
    "data=2@2.1.1 fsdp=8@2.4.1 tensor=4@1.1.4 micro_batch=1 accumulation=16 zero=1 remat=selective",
    "fsdp=16@4.4.1 pipeline=4@1.1.4 micro_batch=1 accumulation=16 schedule=interleaved virtual=4 remat=full",
)


def make_workload() -> Workload:
    model = Architecture(
        name="llama2-70b",
        layers=80,
        d_model=8192,
        vocab=32000,
        attention=Attention(heads=64, kv_heads=8, head_dim=128),
        ffn=FeedForward(d_ff=28672, gated=True),
        source="test",
    )
    return Workload(architecture=model, global_batch=1024, seq_len=4096)


def make_chip(name: str = "v5p", price: float | None = 4.2, **changes: Any) -> Chip:
    fields: dict[str, Any] = {
        "name": name,
        "vendor": "google",
        "kind": "tpu",
        "peak_flops": {"bf16": 459e12},
        "hbm_bytes": 95e9,
        "usable_hbm_bytes": 94e9,
        "hbm_bytes_per_s": 2.765e12,
        "clock_hz": 1.75e9,
        "matrix_tile": 128,
        "matrix_units": 8,
        "on_chip_bytes": 128e6,
        "fabric": "torus",
        "torus_rank": 3,
        "link_bytes_per_s": 90e9,
        "max_domain": 8960,
        "nic_bytes_per_s": 25e9,
        "pcie_bytes_per_s": 16e9,
        "chips_per_host": 4,
        "usd_per_chip_hour": price,
        "sources": ("https://example.org/datasheet?a=1&b=2",),
    }
    return Chip(**{**fields, **changes})


def make_slice(
    name: str = "v5p-128", chips: int = 64, price: float | None = 4.2, wrap: bool = True, slices: int = 1, **chip: Any
) -> Slice:
    topology = (4, 4, chips // 16)
    axes = tuple(
        IciAxis(name=axis, size=size, wrap=wrap, bytes_per_s=90e9, fabric="torus")
        for axis, size in zip("xyz", topology, strict=True)
    )
    about = make_chip(name.split("-")[0], price, **chip)
    return Slice(name=name, chip=about, topology=topology, axes=axes, slices=slices)


def make_estimate(
    line: str, step_time_s: float, hbm_bytes: float = 71.2e9, chips: int = 64, **changes: Any
) -> Estimate:
    workload = make_workload()
    shares = {"matmul": 0.6, "attention": 0.1, "recompute": 0.12, "fsdp": 0.1, "tensor": 0.05, "optimizer": 0.03}
    memory = {"weights": 0.2, "gradients": 0.1, "optimizer": 0.4, "activations": 0.25, "logits": 0.05}
    fields: dict[str, Any] = dict(  # noqa: C408
        plan=Plan.parse(line),
        step_time_s=step_time_s,
        interval_s=(0.9 * step_time_s, 1.2 * step_time_s),
        floor_s=0.8 * step_time_s,
        serial_s=1.5 * step_time_s,
        mfu=workload.model_flops / (chips * 459e12 * step_time_s),
        tokens_per_s=workload.tokens_per_step / step_time_s,
        hbm_bytes=hbm_bytes,
        hbm_limit_bytes=89e9,
        time_parts={name: share * step_time_s for name, share in shares.items()},
        busy={"compute": 0.7 * step_time_s, "hbm": 0.25 * step_time_s, "ici": 0.4 * step_time_s, "dcn": 0.0},
        memory_parts={name: share * hbm_bytes for name, share in memory.items()},
        floor_parts={"compute": 0.8 * step_time_s, "hbm": 0.2 * step_time_s, "ici": 0.3 * step_time_s},
        redundant=0.33,
    )
    return Estimate(**(fields | changes))


def make_sample(n: int = 400) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    step = np.exp(rng.normal(4.4, 0.5, n))
    memory = np.exp(rng.normal(25.1, 0.6, n))
    axes = {a: 2 ** rng.integers(0, 4, n) for a in ("data", "fsdp", "pipeline", "context", "expert", "tensor")}
    return {
        "step_time_s": step,
        "floor_s": 0.8 * step,
        "hbm_bytes": memory,
        "fits": memory < 89e9,
        **axes,
        "micro_batch": 2 ** rng.integers(0, 3, n),
        "remat": rng.choice(["none", "selective", "full"], n),
    }


def make_certificate(best_step_s: float = 100.0, **changes: Any) -> Certificate:
    """Around a best plan of 100 s: seven others share a floor of 80 s, and the lowest interval begins at 82 s."""
    lines = zip(LINES[1:4], (102.5, 104.0, 111.0), (0.214, 0.205, 0.1), strict=True)
    trials = tuple(
        Trial(plan=Plan.parse(line), step_time_s=step, floor_s=80.0, low_s=0.8 * step, at_most_faster=left)
        for line, step, left in lines
    )
    fastest = max(best_step_s / 80 - 1, 0.0)
    hard = Bound(bound_s=80.0, at_most_faster=fastest, contenders=90, at_bound=7, tighten=trials)
    credible = Bound(
        bound_s=82.0, at_most_faster=max(best_step_s / 82 - 1, 0.0), contenders=40, at_bound=1, tighten=trials
    )
    fields = {"best_step_s": best_step_s, "measured": False, "untried": 12_344, "hard": hard, "credible": credible}
    return Certificate(**{**fields, **changes})


def make_slice_answer(where: Any = None, scale: float = 1.0, **changes: Any) -> SliceAnswer:
    where = where or make_slice()
    step_times_s = (100.0, 102.5, 104.0, 111.0, 130.0)
    fields: dict[str, Any] = {
        "slice": where,
        "total": 1_234_567,
        "legal": 345_678,
        "fitting": 12_345,
        "removed": {"heads_divide": 800_000, "layers_divide": 88_889, "memory": 333_333, "unused": 0},
        "ranked": tuple(
            make_estimate(line, scale * step, chips=where.chips) for line, step in zip(LINES, step_times_s, strict=True)
        ),
        "reasons": tuple(f"Reason number {i} for this plan being where it is in the ranking." for i in range(1, 6)),
        "diagnosis": Diagnosis(
            bound="compute",
            evidence=("matmuls fill 60% of the step", "the links are busy 40% of it, all but 5% of the step hidden"),
            next_wall="ici",
            headroom=0.2,
            overlap=0.71,
            redundant=0.33,
            abstains=None,
        ),
        "too_big": (make_estimate(LINES[0].replace("full", "none"), 80.0 * scale, hbm_bytes=140e9),),
        "sample": make_sample(),
        "certificate": make_certificate(scale * step_times_s[0]) if changes.get("ranked", True) else None,
    }
    return SliceAnswer(**{**fields, **changes})


def make_answer(*slices: SliceAnswer, **changes: Any) -> Answer:
    fields: dict[str, Any] = {
        "task": "tune",
        "model": "llama70b",
        "workload": make_workload(),
        "stack": "maxtext",
        "seed": 0,
        "slices": slices or (make_slice_answer(),),
        "wall_s": 3.21,
        "versions": {"asap_ray": "0.1.0", "python": "3.11.7"},
        "run_dir": Path("/runs/one"),
        "stop_reason": "every legal plan was priced",
    }
    return Answer(**{**fields, **changes})


@pytest.fixture(scope="session")
def factory() -> Any:
    makers: dict[str, Callable[..., Any]] = {
        "answer": make_answer,
        "slice_answer": make_slice_answer,
        "slice": make_slice,
        "estimate": make_estimate,
        "certificate": make_certificate,
    }
    return SimpleNamespace(**makers, lines=LINES)
