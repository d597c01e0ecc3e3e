"""A trainer of the user's as a process: below a guard, in an environment without secrets, its log read as it grows."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn

from asap_ray.tiers import guard

GRACE_S = 5.0
"""How long a trainer may take to end by itself once it is asked to."""
PIECE = 1 << 16
"""Bytes of a log that are read at once."""
PASSED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "HOSTNAME", "NPROC"),
    *("LD_LIBRARY_PATH", "LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHASHSEED"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "HF_HOME", "HF_DATASETS_CACHE", "TORCH_HOME"),
)
PASSED_PREFIXES = (
    *("LC_", "XDG_", "OMP_", "MKL_", "OPENBLAS_", "CUDA_", "NVIDIA_", "NCCL_", "UCX_", "FI_", "ROCR_", "HIP_"),
    *("HSA_", "RCCL_", "TPU_", "LIBTPU_", "PJRT_", "MEGASCALE_", "JAX_", "XLA_", "TF_", "TORCH_", "SLURM_"),
)
SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
"""What a name with any of these words in it holds is passed on only where `command.env` names it."""


class TrainerProcess:
    """A trainer below its guard, with its log; a context, after which nothing of it is left."""

    def __init__(self, argv: Sequence[str], log: Path, cwd: str, environment: Mapping[str, str]) -> None:
        log.touch()
        self._log: IO[bytes] = log.open("rb")
        self.size = 0
        command = [sys.executable, "-I", "-S", guard.__file__, str(log), str(GRACE_S), *argv]
        self._guard = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=cwd,
            env=dict(environment),
            start_new_session=True,
        )
        self._status: int | None = None
        self._before: Any = None

    def __enter__(self) -> TrainerProcess:
        # Not in another thread: then the guard sees that this process is gone. Nor where a command ends in its own way.
        ours = threading.current_thread() is threading.main_thread()
        if ours and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._before = signal.signal(signal.SIGTERM, _leave)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end(b"" if kind is SystemExit else b"end\n")
        self._log.close()
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def gone(self) -> bool:
        """Whether the trainer and all that it has started have ended."""
        return self._guard.poll() is not None

    def read(self) -> bytes:
        """What the log has more of, a piece of it."""
        piece = self._log.read(PIECE)
        self.size += len(piece)
        return piece

    def end(self, word: bytes = b"end\n") -> int | None:
        """End what still runs, which is given some time for it where there is a word; the trainer's exit status."""
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        if not self._guard.stdin.closed:
            with contextlib.suppress(BrokenPipeError):  # all has ended
                self._guard.stdin.write(word)
                self._guard.stdin.close()
            told = self._guard.stdout.read()  # ends with the guard, which takes a bounded time
            self._guard.stdout.close()
            self._guard.wait()
            self._status = int(told) if told.strip() else None
        return self._status


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def trainer_environment(given: Mapping[str, str], named: Sequence[str]) -> dict[str, str]:
    """What of an environment a trainer gets: paths, locale, what devices and their libraries read; no secret that was
    not named."""
    return {
        name: value
        for name, value in given.items()
        if name in named
        or ((name in PASSED or name.startswith(PASSED_PREFIXES)) and not any(word in name.upper() for word in SECRETS))
    }
