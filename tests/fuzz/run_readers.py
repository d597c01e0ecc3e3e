"""Ways in for what earlier, older, or other commands left: events, memories, caches, records, weights, locks."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import strategies as st

from asap_ray.__main__ import main
from asap_ray.agents.features import FEATURES, VERSION
from asap_ray.agents.learned import ARRAYS
from asap_ray.executor import local
from asap_ray.fitting.store import named_folds, read_folds
from asap_ray.ledger import NAME, Ledger
from asap_ray.memory import Memory
from asap_ray.overrides import configure
from asap_ray.physics.calibration import calibration_of
from asap_ray.report import files
from asap_ray.settings import data_dir
from asap_ray.tasks import compiling, remember, show, trajectories
from asap_ray.tasks.brains import _weights
from asap_ray.tasks.lessons import lessons_of_runs
from asap_ray.tasks.night.history import kept, name_of
from asap_ray.tasks.night.lock import _gone, _owner, _text
from asap_ray.tasks.night.matrix import Cell
from asap_ray.tasks.night.running import read_cell
from asap_ray.tiers.cache import Cache
from asap_ray.tiers.recorded import read_record
from tests.fuzz import bombs
from tests.fuzz.mutations import as_json, lines, mappings, torn, values
from tests.fuzz.places import folder, placed
from tests.fuzz.running import Reader
from tests.tasks.pretend import Pretend, at_once

RUN = ("+model=tiny", "hardware=v5e-4", "budget.trials=5", "output=json", "agents=playbook")
NIGHT = (
    {"kind": "start", "at": "2026-12-01T01:00:00.000+00:00", "task": "nightly", "command": "x", "versions": {}},
    {"kind": "night", "at": "2026-12-01T01:00:00.000+00:00", "night": "20261201T010000Z"},
    {
        **{
            "kind": "cell",
            "at": "2026-12-01T01:00:00.000+00:00",
            "night": "20261201T010000Z",
            "cell": "a-v5e-4-maxtext",
        },
        **{
            "workload": "a",
            "slice": "v5e-4",
            "stack": "maxtext",
            "words": ["+model=tiny"],
            "attempts": 1,
            "run_dir": "a",
        },
        **{
            "ok": True,
            "plan": "data=4",
            "source": "compile",
            "step_time_s": 1.0,
            "low_s": 0.9,
            "high_s": 1.1,
            "trials": 3,
        },
        **{"parts": {"compute": 1.0}, "versions": {"jax": "1"}, "floor_s": 0.5, "mfu": 0.5, "hbm_bytes": 1e9},
    },
    {
        **{
            "kind": "judged",
            "at": "2026-12-01T01:00:00.000+00:00",
            "night": "20261201T010000Z",
            "cell": "a-v5e-4-maxtext",
        },
        **{"verdict": "new", "cause": "", "ratio": 1.0, "why": ["first"]},
    },
    {"kind": "night_ended", "at": "2026-12-01T02:00:00.000+00:00", "night": "20261201T010000Z", "stop_reason": "done"},
)
CASES = "cases.jsonl"


@cache
def searched() -> tuple[dict[str, Any], ...]:
    """The events of a search with trials, of a compiler that only pretends."""
    here, fresh = local.Local(workers=2), type("Fresh", (Pretend,), {"cache": {}, "compiled": []})
    place = folder() / "searched"
    known = mock.patch.multiple(
        compiling,
        installed=lambda setting, ours: True,
        executor_of=lambda config, workers: contextlib.nullcontext(here),
        Compile=fresh,
        calibration_of=lambda chip, _, constants: calibration_of(chip, "maxtext", constants),
    )
    page = mock.patch.object(files, "page", return_value="<!doctype html></html>\n")
    with (
        known,
        page,
        mock.patch.object(local, "stream", at_once),
        mock.patch.dict("os.environ", XDG_DATA_HOME=str(place)),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()) as told,
    ):
        status = main([*RUN, f"run_dir={place / 'run'}"])
    assert status == 0, told.getvalue()
    return tuple(Ledger(place / "run").events())


def readers() -> Iterator[Reader]:
    """All of them."""
    events = st.deferred(lambda: torn(values([list(searched())]).map(_jsonl)))
    nights = torn(values([list(NIGHT)]).map(_jsonl))
    large = (
        lambda: b'{"kind": "x", "at": "", "a": "' + b"x" * 50_000_000 + b'"}\n',
        lambda: b'{"kind": "x"}\n' * 200_000,
    )
    yield Reader(
        name="events, shown",
        read=placed(f"shown/{NAME}", _shown),
        inputs=events,
        bombs=(*bombs.JSON, *large),
        share=0.2,
    )
    yield Reader(
        name="events, exported", read=placed(f"out/{NAME}", _exported), inputs=events, bombs=bombs.JSON, share=0.2
    )
    yield Reader(name="events, remembered", read=placed(f"kept/{NAME}", _remembered), inputs=events, share=0.2)
    yield Reader(
        name="events, learnt from",
        read=placed(f"learnt/{NAME}", lambda path: lessons_of_runs([Ledger(path.parent)])),
        inputs=events,
        share=0.2,
    )
    yield Reader(name="events of nights", read=placed(f"nights/{NAME}", _nights), inputs=nights, bombs=bombs.JSON)
    yield Reader(
        name="events of a night's cell", read=placed(f"cell/{NAME}", _cell), inputs=events, bombs=bombs.JSON, share=0.2
    )
    yield Reader(
        name="memory",
        read=placed(CASES, _memory),
        inputs=st.deferred(lambda: torn(values([_cases()]).map(_jsonl))),
        bombs=(*bombs.JSON, *large),
    )
    yield Reader(
        name="lock of a night",
        read=placed("night.lock", _lock),
        inputs=torn(mappings([{"host": _host(), "pid": 1, "token": "a"}]).map(as_json)),
        bombs=bombs.JSON,
    )
    built = mappings([_build()])
    yield Reader(
        name="compiled cache",
        read=placed("cache/ab/abc.json.gz", lambda path: _kept(path)),
        inputs=torn(built.map(as_json).map(partial(gzip.compress, compresslevel=1))),
        bombs=(bombs.gzip_bomb, *(lambda each=each: bombs.zipped(each()) for each in bombs.JSON)),
        share=0.5,
    )
    yield Reader(
        name="policy weights",
        read=placed("policy.npz", _policy),
        inputs=torn(
            st.builds(
                _npz,
                mappings([_origin()]),
                st.sampled_from((0, 1, 2, 3)),
                st.sampled_from(("<f4", "<f8", "<i8", "O", "<U3", "bool")),
            )
        ),
        bombs=(
            partial(bombs.npz, dict.fromkeys(ARRAYS, (2**40,))),
            partial(bombs.npz_bomb, ARRAYS),
            lambda: b"PK\x05\x06" + b"\0" * 18,
            lambda: b"PK",
            lambda: b"\x93NUMPY\x01\x00" + b"\xff" * 100,
        ),
        share=0.3,
    )
    yield Reader(
        name="record of compilations",
        read=placed("results.csv", read_record),
        inputs=torn(lines([_record()])),
        bombs=(*bombs.TEXT, *bombs.JSON[:5]),
        share=0.3,
    )
    yield Reader(
        name="table of folds",
        read=placed("folds.parquet", _folds),
        inputs=torn(st.just((data_dir("knowledge") / "folds.parquet").read_bytes())),
        share=0.1,
    )
    yield Reader(
        name="wheel to ship",
        read=placed("asap_ray-0-py3-none-any.whl", _wheel),
        inputs=torn(st.builds(_zip, st.booleans())),
        bombs=(lambda: b"PK\x05\x06" + b"\0" * 18, bombs.zip_bomb),
        share=0.3,
    )


def _jsonl(events: Any) -> bytes:
    return b"".join(as_json(each) + b"\n" for each in (events if isinstance(events, list) else [events]))


def _config(task: str, path: Path) -> Any:
    return configure(
        [
            f"task={task}",
            f"run_dir={path.parent}",
            "output=json",
            *(("export.what=trajectories",) if task == "export" else ()),
        ]
    )


def _quiet(task: Any, name: str, path: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        task(_config(name, path))


_shown = partial(_quiet, show.run, "show")
_exported = partial(_quiet, trajectories.run, "export")


def _remembered(path: Path) -> None:
    with mock.patch.dict("os.environ", XDG_DATA_HOME=str(path.parent / "data")):
        _quiet(remember.run, "remember", path)
    (path.parent / "data" / "asap_ray" / "memory" / CASES).unlink(missing_ok=True)


def _nights(path: Path) -> None:
    ledger = Ledger(path.parent)
    with ledger.understood():
        found = kept(ledger.events())
        name_of(_now(), found)
        from asap_ray.tasks.night.history import write_history

        write_history(found, path.parent)


def _now() -> Any:
    from datetime import UTC, datetime

    return datetime(2026, 12, 2, tzinfo=UTC)


def _cell(path: Path) -> None:
    cell = Cell(workload="tiny", slice="v5e-4", stack="maxtext", words=())
    read_cell("20261201T010000Z", cell, path.parent, 1)


@cache
def _cases() -> list[dict[str, Any]]:
    from asap_ray.tasks.remembering import cases_of

    return [json.loads(json.dumps(each.as_dict())) for each in cases_of(list(searched()))]


def _memory(path: Path) -> None:
    memory = Memory(path.parent)
    read = memory.read()
    assert read.complaint.isprintable()
    memory.add(read.cases)


def _host() -> str:
    import socket

    return socket.gethostname()


def _lock(path: Path) -> None:
    _gone(path.parent, path, _owner(_text(path) or b""))


def _build() -> dict[str, Any]:
    from asap_ray.compiler.request import Build

    return Build(
        status="complete", memory={"peak": 5, "arguments": 3}, arguments={"0.weights": 3}, seconds={"compile": 1.0}
    ).as_dict()


def _kept(path: Path) -> None:
    found = Cache(path.parents[1]).read("abc")
    if found is not None:
        assert found.digest is not None


@cache
def _arrays() -> dict[str, np.ndarray]:
    with np.load(data_dir("knowledge") / "policy" / "policy.npz", allow_pickle=False) as file:
        return {name: np.asarray(file[name]) for name in ARRAYS}


def _origin() -> dict[str, Any]:
    return {"version": VERSION, "features": list(FEATURES), "workloads": 3, "sources": ["a"], "left_out": [], "seed": 0}


def _npz(origin: dict[str, Any], wrong: int, kind: str) -> bytes:
    """Weights of which the first few arrays are of another kind or shape."""
    out = io.BytesIO()
    arrays = dict(_arrays())
    for name in ARRAYS[:wrong]:
        with contextlib.suppress(ValueError, TypeError):
            arrays[name] = np.asarray(arrays[name]).astype(kind)[..., : -1 if wrong % 2 else None]
    np.savez(out, origin=np.array(json.dumps(origin, default=str)), **arrays)
    return out.getvalue()


def _policy(path: Path) -> None:
    _weights.cache_clear()
    found = _weights(path)
    if isinstance(found, str):
        assert found.isprintable(), found
    else:
        found.residual(np.zeros((3, len(FEATURES))))


def _record() -> str:
    return "\n".join((data_dir("knowledge") / "compiled" / "results.csv").read_text().splitlines()[:12])


def _folds(path: Path) -> None:
    read_folds(path)
    named_folds(path)


def _zip(out_of_it: bool) -> bytes:
    import zipfile

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("asap_ray/__init__.py", "x = 1\n")
        if out_of_it:
            archive.writestr("../../evil.py", "x = 1\n")
        archive.writestr("asap_ray/big.py", " " * 1_000_000)
    return out.getvalue()


def _wheel(path: Path) -> None:
    from asap_ray.tasks.shipping import unpacked, wheel_of

    target = path.parent / "shipped"
    target.mkdir(exist_ok=True)
    config = mock.Mock(launch=mock.Mock(wheel=str(path)))
    for name, _ in unpacked(wheel_of(config, target)):
        assert ".." not in name.split("/"), f"a path that leads out: {name}"
