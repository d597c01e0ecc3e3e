"""The parts of `task=nightly`: its cells, how one runs, the lock, what is kept of it, and what is told elsewhere."""
