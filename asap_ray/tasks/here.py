"""`task=calibrate hardware=local`: what this machine's chips achieve of their description, by a micro-benchmark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from asap_ray.config import Config
from asap_ray.drafts import write_whole
from asap_ray.fitting.microbenchmark import Measured, measured_here
from asap_ray.fitting.store import fitted_text
from asap_ray.hardware import parse_slice
from asap_ray.physics.calibration import calibrations_from_mappings
from asap_ray.report.outline import Block, Grid
from asap_ray.report.summary import finite
from asap_ray.settings import load_group, read_settings, setting_files
from asap_ray.tasks.machine import LOCAL
from asap_ray.tasks.running import begin, tell, write_files
from asap_ray.tasks.setting import load_chips


def calibrate_here(config: Config) -> int:
    """Measure this machine and write its calibration; returns the exit status.

    Raises:
        AsapError: the chip is not described, or JAX has no such devices here.
    """
    slice_ = parse_slice(LOCAL, load_chips(config))
    calibrations_from_mappings(load_group("calibration", config.config_dir))  # what it adds to is sound, before minutes
    print("measuring this machine (a minute or two) …", file=sys.stderr)
    found = measured_here(slice_.chip, slice_.devices)
    ledger = begin(config)
    own = setting_files("calibration", config.config_dir).get(LOCAL)
    text = own.read_text() if own else f"base: {slice_.chip.kind}\n"
    path = config.run_path / "conf" / "calibration" / f"{LOCAL}.yaml"
    kept = read_settings(own).get("fitted", {}) if own else {}
    constants = {**{key: tuple(pair) for key, pair in kept.items()}, **found.constants}
    write_files(config, lambda: _write(path, fitted_text(text, constants, {})))
    fields = finite({"task": "calibrate", **asdict(found), "file": str(path)})
    ledger.append("calibrated", fields)
    tell(config, fields, _outline(found, path))
    return 0


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)


def _outline(found: Measured, path: Path) -> Iterator[Block]:
    rows = tuple((name, f"{value:.4g}", f"{error:.2g}") for name, (value, error) in sorted(found.constants.items()))
    yield Block(
        title=f"What {found.devices} achieves of its description",
        grid=Grid(header=("constant", "measured", "standard error"), rows=rows, words=("constant",)),
    )
    if found.doubts:
        yield Block(title="The description cannot be right", facts=tuple(("", doubt) for doubt in found.doubts))
    yield Block(title="Not measured", facts=tuple(sorted(found.missing.items())))
    yield Block(facts=(("copy to", "calibration/ in the folder of --config-dir"), ("file", str(path))))
