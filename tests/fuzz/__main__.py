"""Prints what became of near-sound and hostile inputs, reader by reader: `python -m tests.fuzz --seed 7`.

Each reader has a process of its own, so that what one holds or breaks is not another's. The status is 1 where any
input came to anything but a value or an error that the reader says it raises.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from tests.fuzz.everything import everything
from tests.fuzz.places import swept
from tests.fuzz.running import Figures, Reader, fuzz

HEAD = f"{'reader':<28} {'examples':>8} {'refused':>8} {'accepted':>8} {'crashes':>8} {'peak MB':>8} {'slowest ms':>11}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--examples", type=int, default=2000, help="of a reader; dear ones get a part of it")
    parser.add_argument("--only", default="", help="readers whose names hold this")
    given = parser.parse_args(argv)
    begun, found = time.monotonic(), []
    print(HEAD)
    for reader in everything():
        if given.only in reader.name:
            figures = apart(reader, given.examples, given.seed)
            found.append(figures)
            print(row(figures), flush=True)
    total = Figures(name=f"{len(found)} readers, seed {given.seed}")
    for name in ("examples", "refused", "accepted"):
        setattr(total, name, sum(getattr(each, name) for each in found))
    total.peak_mb, total.slowest_ms = (max(getattr(each, name) for each in found) for name in ("peak_mb", "slowest_ms"))
    total.crashes = {f"{each.name}: {kind}": text for each in found for kind, text in each.crashes.items()}
    print(f"{row(total)}\nin {time.monotonic() - begun:,.0f} s")
    for kind, text in total.crashes.items():
        print(f"\n{kind}\n{text[:1500]}")
    return 1 if total.crashes else 0


def row(figures: Figures) -> str:
    """One line of the table."""
    numbers = f"{figures.examples:>8,} {figures.refused:>8,} {figures.accepted:>8,} {len(figures.crashes):>8,}"
    return f"{figures.name:<28} {numbers} {figures.peak_mb:>8,.0f} {figures.slowest_ms:>11,.0f}"


def apart(reader: Reader, examples: int, seed: int) -> Figures:
    """A reader's figures, found in a process of its own; one that is gone has crashed."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_tell, args=(theirs, reader, examples, seed))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        process.join()
        return Figures(name=reader.name, crashes={"gone": f"its process ended with {process.exitcode}"})
    finally:
        process.join()


def _tell(end: Connection, reader: Reader, examples: int, seed: int) -> None:
    try:
        end.send(fuzz(reader, examples, seed))
    finally:
        swept()


if __name__ == "__main__":
    sys.exit(main())
