"""Entry point: read the command line, check it, hand over to one task.

Whatever a user can get wrong ends here as one line on stderr and status 1; a traceback is a fault of the package.
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, NoReturn

from asap_ray import __version__
from asap_ray.errors import AsapError
from asap_ray.redaction import hidden

if TYPE_CHECKING:
    from asap_ray.config import Config


ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command as Ctrl-C does."""


class _Ended(KeyboardInterrupt):
    """A signal of `ENDING` has come; `number` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise AsapError(f"{message}; see --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="asap-ray", add_help=False, allow_abbrev=False)
    parser.add_argument("words", nargs="*")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("-c", "--cfg", choices=["job"])
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-cd", "--config-dir")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit status (0 done, 1 something for the user to change, 2 and up by task; 128
    and up by signal)."""
    _open_streams()
    sys.excepthook = _told
    try:
        with _ended_in_order():
            status = _run(_parser().parse_intermixed_args(argv))
        sys.stdout.flush()  # here, where an error has a name, and not while the interpreter ends
        return status
    except AsapError as error:
        print("asap-ray:", hidden(" ".join(str(error).split()), os.environ), file=sys.stderr)
        return 1
    except _Ended as ended:
        print(f"asap-ray: ended by {signal.Signals(ended.number).name}", file=sys.stderr)
        return 128 + ended.number
    except KeyboardInterrupt:
        print("asap-ray: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has seen enough (`| head`); keep the interpreter's last flush from failing too
        _drop_stdout()
        return 0
    except OSError as error:  # files are the tasks' concern, and name their key; a broken stdout is nobody's
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF):
            raise
        _drop_stdout()
        print(f"asap-ray: what was found cannot be printed: {error.strerror}", file=sys.stderr)
        return 1


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """While a command runs, a signal that ends it is raised in it, so that what it has started ends too and its locks
    are free. A second one changes nothing; nor does one that is ignored, as with nohup."""
    ours = [each for each in ENDING if signal.getsignal(each) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        ours = []

    def end(number: int, _: FrameType | None) -> None:
        for each in ours:
            signal.signal(each, lambda *_: None)  # not SIG_IGN, which whatever is started now would inherit
        raise _Ended(number)

    for each in ours:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)


def _told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A fault of the package with its traceback, which must not tell a secret either."""
    sys.stderr.write(hidden("".join(traceback.format_exception(kind, error, trace)), os.environ))


def _open_streams() -> None:
    """Where stdout or stderr is closed (`>&-`), what would be printed is dropped; a run still has its files."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _check_working_directory() -> None:
    try:
        os.getcwd()
    except OSError as error:
        text = f"the working directory cannot be found ({error.strerror}); change to one that exists"
        raise AsapError(text) from error


def _drop_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(args: argparse.Namespace) -> int:
    if args.version:
        print(f"asap-ray {__version__}")
        return 0
    if args.help:
        from asap_ray.usage import help_text, key_text

        print(key_text(args.words) if args.words else help_text(args.config_dir))
        return 0
    _check_working_directory()
    from asap_ray.overrides import configure, jobs

    words = [*args.words, *([f"config_dir={args.config_dir}"] if args.config_dir is not None else [])]
    configs = [configure(job) for job in jobs(words, multirun=args.multirun)]
    if args.multirun:  # jobs of one sweep must not write over each other
        configs = [
            dataclasses.replace(each, run_dir=f"{each.remote_dir or each.run_path}/{i}")
            for i, each in enumerate(configs)
        ]
    if args.cfg:
        from omegaconf import OmegaConf

        print(
            hidden("---\n".join(OmegaConf.to_yaml(OmegaConf.structured(each)) for each in configs), os.environ), end=""
        )
        return 0
    return max(_task(each) for each in configs)


def _task(config: Config) -> int:
    from asap_ray.tasks.mirror import mirrored

    with mirrored(config):
        return importlib.import_module(f"asap_ray.tasks.{config.task}").run(config)


if __name__ == "__main__":
    sys.exit(main())
