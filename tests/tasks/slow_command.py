"""The main command as a process, with a compile tier that takes a moment and writes down what it compiles."""

from __future__ import annotations

import contextlib
import os
import sys
import time

from asap_ray.__main__ import main
from asap_ray.executor.local import Local
from asap_ray.plan import Plan
from asap_ray.tasks import compiling
from asap_ray.tiers.finding import Finding
from tests.tasks.pretend import Pretend

COMPILED = "ASAP_RAY_TEST_COMPILED"


class Slow(Pretend):
    """Each compilation is a line in a file, once it is done."""

    def _compile(self, plan: Plan) -> Finding:
        time.sleep(0.3)
        made = super()._compile(plan)
        with open(os.environ[COMPILED], "a") as file:
            file.write(f"{plan.line}\n")
        return made


def run() -> None:
    """Run what the command line says: through Ray, or with `local` as its first word in processes of this one."""
    compiling.Compile = Slow  # type: ignore[misc]
    if sys.argv[1] == "local":
        compiling.executor_of = lambda config, workers: contextlib.nullcontext(Local(workers=2))  # type: ignore[assignment]
    del sys.argv[1]
    sys.exit(main())
