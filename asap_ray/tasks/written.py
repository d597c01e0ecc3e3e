"""Plans that a user writes, for `plan=` and `baseline=`: whole lines, parts of one, and files that hold one.

What a line names is pinned; everything it leaves out takes its best. So a whole line is that plan, and a part of one is
the fastest legal plan that has it.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from asap_ray.config import Config
from asap_ray.errors import ConfigError
from asap_ray.interchange.exchange import plan_of
from asap_ray.narrowing import fixed
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import KNOBS, Plan
from asap_ray.rules import broken
from asap_ray.space import Space
from asap_ray.tasks.baseline import foreign_baseline
from asap_ray.tasks.nothing import explain_nothing
from asap_ray.tasks.running import fastest_layout, swept
from asap_ray.tiers.roofline import Roofline

LARGEST_FILE_BYTES = 4 * 2**20  # a summary has a few KB; what is larger is another file


def written_plan(config: Config, tier: Roofline, space: Space, line: str, key: str) -> tuple[bool, Estimate]:
    """The estimate of the plan that a line stands for, and whether the line was a whole plan; it need not fit.

    Raises:
        ConfigError: the line cannot be read, or no legal plan of the space has all that it names.
    """
    plan = Plan.parse(line, key)
    if broken(tier.problem, plan) is None:
        return True, fastest_layout(tier, plan, key)
    if plan.layout:
        raise ConfigError(key, line, "the whole plan where it names a layout (@…); leave the @ parts out")
    pinned = space.narrowed(*fixed(tier.problem, pins(line, key), key=key))
    sweep = swept(tier, pinned, top=1)
    found = (*sweep.ranked, *sweep.too_big)
    if not found:
        raise explain_nothing(config, tier, pinned, sweep)
    return False, found[0]


def baseline_of(config: Config, tier: Roofline) -> Estimate | None:
    """The baseline's estimate, None where none is given; what narrows the space does not narrow it.

    Raises:
        ConfigError: it is neither a plan nor a file that holds one, nor a trainer's config; or no legal plan is as it
            says.
    """
    if config.baseline is None:
        return None
    if (foreign := foreign_baseline(config)) is not None:
        plan = plan_of(foreign, tier.problem)
        if (rule := broken(tier.problem, plan)) is not None:
            raise foreign.error(f"its plan is not legal here ({plan.line}): {rule[1]}")
        return fastest_layout(tier, plan, "baseline")
    line = baseline_line(config.baseline)
    return written_plan(config, tier, Space(problem=tier.problem), line, "baseline")[1]


def pins(line: str, key: str) -> dict[str, object]:
    """What a plan line names, as `space.fix` takes it: a size alone is an axis's total, `AxB` its two parts.

    Raises:
        ConfigError: the line cannot be read.
    """
    plan, found = Plan.parse(line, key), dict[str, object]()
    for token in line.split():
        name, _, value = token.partition("=")
        if name in KNOBS:
            found[name] = getattr(plan, name)
        elif "x" in value:
            inside, _, across = value.partition("x")
            found[f"{name}_ici"], found[f"{name}_dcn"] = int(inside.split("@")[0]), int(across)
        else:
            found[name] = plan.axes[name]
    return found


def baseline_line(text: str) -> str:
    """The line of a baseline: the text itself, or what is in the file it names: a line, a `summary.json`, or JSON with
    a `line`.

    Raises:
        ConfigError: it is neither a plan nor a file that holds one.
    """
    wanted = "allowed: a plan in one line, a file with one (its line, or a summary.json), or a trainer's config"
    try:
        path = Path(os.path.expanduser(text))  # ~name stays where there is no such user; Path would raise
        if not path.is_file():
            if "=" in text:
                return text
            raise ConfigError("baseline", text, f"no such file; {wanted}")
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise ConfigError("baseline", text, f"at most {LARGEST_FILE_BYTES:,} bytes; {wanted}")
        content = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # no file has so long a name, but a plan may be so long
            return text
        raise ConfigError("baseline", text, f"cannot be read ({error.strerror}); {wanted}") from error
    except UnicodeDecodeError as error:
        raise ConfigError("baseline", text, f"not text; {wanted}") from error
    line = _line_in(content)
    try:
        Plan.parse(line or "?", "baseline")
    except ConfigError as error:
        # The file is the user's own and may hold anything: it is named, and nothing of it is printed.
        raise ConfigError("baseline", text, f"this file holds no plan; {wanted}") from error
    return str(line)


def _line_in(content: str) -> str | None:
    """The plan's line in the text of a file, None where there is none."""
    if not content.startswith("{"):
        return content.splitlines()[0] if content else None
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return None
    best = data.get("best")
    line = best.get("line") if isinstance(best, dict) else data.get("line")
    return line if isinstance(line, str) and line else None
