"""A trainer to be tuned in tests, with the standard library alone: its step takes as long as its plan makes it.

A step is `0.02 s x micro-batches x (1 + 0.5 where tensor > 1)`. `--fault` makes it go wrong in one of the ways in
which trainers do.
"""

import argparse
import os
import signal
import subprocess
import sys
import time

AXES = ("data", "fsdp", "pipeline", "context", "expert", "tensor")


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("steps", "global-batch", "seq-len", "micro-batch", "accumulation", *AXES):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--remat", default="none")
    parser.add_argument("--fault", default="")
    parser.add_argument("--marker", default="")
    asked = parser.parse_args()
    if asked.fault == "stubborn":
        stubborn(asked.marker)
    if asked.fault == "hang":
        time.sleep(600)
    tensor = 1 if asked.fault == "lie" else asked.tensor
    if asked.fault != "silent about its plan":
        print("mesh", *(f"{axis}={tensor if axis == 'tensor' else getattr(asked, axis)}" for axis in AXES), flush=True)
    if asked.fault == "memory":
        print("out of memory: needs 3.5 GiB of 2 GiB", flush=True)
        time.sleep(600)
    if asked.fault == "secret":
        print("my key is", os.environ.get("TOY_TOKEN"), "and", os.environ.get("OTHER_TOKEN"), flush=True)
        sys.exit(3)
    if asked.fault == "long line":
        print("a" * 5_000_000, flush=True)
    if asked.fault == "torn trace":
        with open(asked.marker, "wb") as file:
            file.write(b"\x0a\xff")
    second = 0.02 * asked.accumulation * (1.5 if asked.tensor > 1 else 1.0)
    for step in range(asked.steps if asked.fault != "endless" else 10**9):
        begun = time.perf_counter()
        time.sleep(second if step else 5 * second)  # the first one compiles
        if asked.fault == "crash" and step == 3:
            raise RuntimeError("the data set is gone")
        if asked.fault == "no steps":
            print("all is well", flush=True)
            continue
        loss = "nan" if asked.fault == "diverge" and step == 3 else f"{8.0 - 0.1 * step:.3f}"
        print(f"step {step} seconds {time.perf_counter() - begun:.4f} loss {loss}", flush=True)


def stubborn(marker: str) -> None:
    """Go deaf to SIGTERM, with a child in a session of its own that is deaf too; both write their ids down."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    with open(f"{marker}.new", "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    os.rename(f"{marker}.new", marker)
    time.sleep(600)


if __name__ == "__main__":
    main()
