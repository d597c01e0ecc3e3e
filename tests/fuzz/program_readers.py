"""Ways in for what compilers, profilers and trainers write: programs, traces, logs, refusals."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from asap_ray.compiler.facts import Facts
from asap_ray.compiler.hlo import parse
from asap_ray.compiler.live import largest
from asap_ray.compiler.lowered import bare
from asap_ray.compiler.refusal import refusal
from asap_ray.compiler.request import program_digest
from asap_ray.compiler.timeline import profile_of
from asap_ray.profile import xplane, xprof
from asap_ray.profile.verdict import verdict
from asap_ray.profile.xspace import read_tables
from asap_ray.settings import load_group
from asap_ray.tiers.compile_with import argument_bytes
from asap_ray.tiers.following import Follower, Reading
from asap_ray.tiers.templates import template_from_mapping
from tests.compiler.conftest import PLANS, calibrated, planned
from tests.compiler.programs import dump
from tests.fuzz import bombs
from tests.fuzz.mutations import lines, torn, values
from tests.fuzz.places import placed
from tests.fuzz.running import Reader
from tests.profile import layouts
from tests.profile.xspace_writer import Kind, Plane, xspace

TEMPLATES = {name: template_from_mapping(name, given) for name, given in load_group("command").items()}
LOGS = (
    "I1130 metric_logger.py:265] completed step: {n}, seconds: 0.289, TFLOP/s/device: 0.008, Tokens/s/device: 1770.5, "
    "total_weights: 2048, loss: 7.432, lm_loss: 7.432, perplexity: 1689.726\n"
    " [2025-01-01 00:00:00.000000] iteration        {n}/      13 | consumed samples:           64 | elapsed time per "
    "iteration (ms): 1234.5 | learning rate: 1.000000E-05 | lm loss: 1.034E+01 | number of nan iterations:   0 |\n"
    "[rank0]:[titan] 2025-11-25 19:45:01,441 - root - INFO - step:  {n}  loss:  8.0277  memory:  1.21GiB(0.86%)  "
    "tps: 8,192\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.00 GiB "
    "of which 1.00 GiB is free. Process 1 has 78.00 GiB memory in use.\n"
    "step 3 1.5 s loss nan\n",
)
REFUSALS = (
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.5G of 15.75G hbm. "
    "Exceeded hbm capacity by 4.75G.",
    "RESOURCE_EXHAUSTED: the memory required for all of it (1.5GiB) exceeds available HBM (0.9GiB)",
    "CompileTimeHbmOom requires 12.5 GB and there are only 10 GB; limit 9 GB",
)


def readers() -> Iterator[Reader]:
    """All of them."""
    for name in ("layers", "layers_h100", "ring", "across", "splash"):
        yield Reader(
            name=f"HLO text, {name}",
            read=partial(_program, name),
            inputs=st.deferred(lambda name=name: torn(lines([dump(name)]))).map(_text),
            bombs=_programs() if name == "layers" else (),
            share=0.04,
        )
    yield Reader(
        name="StableHLO text",
        read=bare,
        inputs=torn(lines([_STABLE], " ")).map(_text),
        bombs=tuple(lambda each=each: _text(each()) for each in bombs.TEXT),
    )
    yield Reader(
        name="refusals of compilers",
        read=refusal,
        inputs=torn(lines(REFUSALS, " ")).map(_text),
        bombs=tuple(lambda each=each: REFUSALS[0][:18] + _text(each()) for each in bombs.TEXT),
    )
    yield Reader(
        name="tables of a trace",
        read=read_tables,
        inputs=st.deferred(lambda: torn(st.sampled_from(_traces()))),
        bombs=_spaces(),
    )
    yield Reader(
        name="traces (xplane)",
        read=placed("t/host.xplane.pb", _trace),
        inputs=st.deferred(lambda: torn(st.sampled_from(_traces()))) | _made_traces(),
        bombs=_spaces(),
        share=0.3,
    )
    yield Reader(name="pages of xprof", read=_pages, inputs=values([_PAGES]))
    for name in TEMPLATES:
        yield Reader(
            name=f"log of {name}",
            read=partial(_log, name),
            inputs=torn(lines([text.format(n=4) for text in LOGS])),
            bombs=(*bombs.TEXT, *_logs()),
            share=0.5,
        )
    yield Reader(
        name="program beside a log",
        read=lambda text: argument_bytes(text),
        inputs=st.deferred(lambda: torn(lines([dump("layers")]))).map(_text),
        share=0.1,
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


@cache
def _planned(name: str) -> tuple[Any, Any, Any]:
    problem, plan = planned(*PLANS[name])
    return problem, plan, calibrated(problem)


def _program(name: str, text: str) -> None:
    problem, plan, calibration = _planned(name)
    program_digest(text)
    module = parse(text)
    largest(module)
    Facts(module, plan, problem.workload).rows()
    profile_of(module, problem, plan, calibration)


def _programs() -> tuple[Any, ...]:
    head = "HloModule x, num_partitions=4\n\n"
    body = "ENTRY %main (a: f32[2]) -> f32[2] {\n"
    loop = "%b (p: f32[2]) -> f32[2] {\n  ROOT %w = f32[2] while(%p), condition=%b, body=%b\n}\n\n"
    return (
        head + "%x (" + ") -> " * 20_000,
        head + "%x (" + ") -> " * 200_000,
        head + body + "  %a = (" + "(" * 200_000 + "\n}\n",
        head + body + "  %a = f32[2] add(" + "(" * 200_000 + "\n}\n",
        head + body + "  %a = (" + ") x" * 100_000 + "\n}\n",
        head + body + "  ROOT %a = f32[" + "9" * 10_000 + "] parameter(0)\n}\n",
        head + body + "  ROOT %a = f32[99999999999,99999999999,99999999999] parameter(0)\n}\n",
        head + body + "  ROOT %a = f32[2] parameter(x)\n}\n",
        head + body + "  ROOT %a = f32[2] parameter(" + "9" * 10_000 + ")\n}\n",
        head + body + "}\n",
        head + loop + body.replace("a: f32[2]", "") + "  ROOT %a = f32[2] while(%a), condition=%b, body=%b\n}\n",
        head
        + "%f (p: f32[2]) -> f32[2] {\n  ROOT %r = f32[2] fusion(%p), kind=kLoop, calls=%f\n}\n\n"
        + body
        + "  ROOT %a = f32[2] fusion(%a), kind=kLoop, calls=%f\n}\n",
        head
        + "".join(
            f"%f{i} (p: f32[2]) -> f32[2] {{\n  %q = f32[2] call(%p), to_apply=%f{i + 1}\n"
            f"  ROOT %r = f32[2] call(%q), to_apply=%f{i + 1}\n}}\n\n"
            for i in range(40)
        )
        + "%f40 (p: f32[2]) -> f32[2] {\n  ROOT %p = f32[2] parameter(0)\n}\n\n"
        + body
        + "  ROOT %a = f32[2] call(%a), to_apply=%f0\n}\n",
        head
        + "".join(
            f"%f{i} (p: f32[2]) -> f32[2] {{\n  ROOT %r = f32[2] fusion(%p), kind=kLoop, calls=%f{i + 1}\n}}\n\n"
            for i in range(3000)
        )
        + body
        + "  ROOT %a = f32[2] fusion(%a), kind=kLoop, calls=%f0\n}\n",
        head + body + '  ROOT %a = f32[2] add(%a, %a), metadata={op_name="' + "\\" * 200_000 + "\n}\n",
        head + body + "  ROOT %a = f32[2] all-reduce(%a), replica_groups=[99999999,99999999]<=[9999999999999998]\n}\n",
        head + body + "  ROOT %a = f32[2] all-reduce(%a), replica_groups={" + "{0,1}," * 200_000 + "\n}\n",
        head + body + "  ROOT %a = f32[2] collective-permute(%a), source_target_pairs={" + "{0,1}," * 200_000 + "\n}\n",
        "HloModule x, num_partitions=" + "9" * 5000 + "\n\n" + body + "  ROOT %a = f32[2] parameter(0)\n}\n",
        'FileNames\n1 "a"\n\nStackFrames\n1 {}\n\n' + head + body + "  ROOT %a = f32[2] parameter(0)\n}\n",
        "FileNames\nx y\n\n" + head + body + "  ROOT %a = f32[2] parameter(0)\n}\n",
    )


_STABLE = (
    "module @jit_f { func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> { stablehlo.custom_call @f(%arg0) "
    '{backend_config = "{\\22custom_call_config\\22: {\\22body\\22: \\22TUzvUgFNTElSMjA=\\22}}"} } }'
)
_PAGES = [
    {"p": {"device_duty_cycle_percent": "55%"}, "cols": [{"id": "bound_by"}], "rows": [{"c": [{"v": "HBM"}]}]},
    {"memoryProfilePerAllocator": {"a": {"profileSummary": {"peakStats": {"peakBytesInUse": "5"}}}}},
]


def _pages(page: Any) -> None:
    """The three readers of xprof's pages run in a process of their own, whose faults mean that it says nothing."""
    for read in (xprof._uses, xprof._roofline, xprof._memory):
        try:
            list(read(page))
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            continue


@cache
def _traces() -> list[bytes]:
    traces = Path(__file__).parents[1] / "profile" / "traces"
    real = [gzip.decompress(path.read_bytes()) for path in sorted(traces.rglob("*.gz"))]
    made = [each for each in (_layout(name) for name in dir(layouts)) if each]
    return [*made, *made, *made, min(real, key=len)]


def _layout(name: str) -> bytes:
    made = getattr(layouts, name)
    if name.startswith("_") or not callable(made) or getattr(made, "__module__", "") != layouts.__name__:
        return b""
    try:
        found = made()
    except TypeError:
        return b""
    if isinstance(found, bytes):
        return found
    planes = [found] if isinstance(found, Plane) else found
    return (
        xspace(*planes)
        if isinstance(planes, (list, tuple)) and all(isinstance(each, Plane) for each in planes)
        else b""
    )


STATS = st.sampled_from(
    (
        0,
        1,
        -1,
        2**63 - 1,
        -(2**63),
        0.5,
        float("nan"),
        float("inf"),
        -1e308,
        "",
        "x",
        "\x1b[31m",
        b"\xff",
        "%a = f32[2]{0} add(%b)",
        "9" * 400,
    )
)
NAMES = st.sampled_from(
    (
        "hlo_op",
        "hlo_module",
        "program_id",
        "device_ordinal",
        "run_id",
        "step_num",
        "hlo_category",
        "flops",
        "bytes_accessed",
        "tf_op",
        "peak_teraflops_per_second",
        "peak_hbm_bw_gigabytes_per_second",
        "device_type_string",
        "Hlo Proto",
        "source",
    )
)


@st.composite
def _made_traces(draw: Any) -> bytes:
    """Traces whose planes, lines and stats are named as a reader looks for them, with values of any kind."""
    own = st.dictionaries(NAMES, STATS, max_size=5)
    times = st.sampled_from((0.0, 1.0, 2.0, 5.0, 5.0, 1e6, 1e12))
    words = st.sampled_from(
        (
            "fusion.1",
            "%all-reduce.2 = f32[4]{0} all-reduce(%x), replica_groups={}",
            "jit_step(12)",
            "while",
            "copy-start.1",
            "train",
            "IteratorGetNext",
            "\x1b[2J",
            "x" * 3000,
        )
    )
    event = st.tuples(times, times, st.builds(Kind, words, own), own)
    line = st.sampled_from(("XLA Ops", "Async XLA Ops", "XLA Modules", "Steps", "Stream #1", "python", ""))
    plane = st.builds(
        Plane,
        st.sampled_from(("/device:TPU:0", "/device:GPU:1", "/host:CPU", "/host:metadata", "")),
        st.dictionaries(line, st.lists(event, max_size=6), max_size=4),
        own,
        st.lists(st.builds(Kind, words, own), max_size=2),
    )
    return xspace(*draw(st.lists(plane, min_size=1, max_size=3)))


def _spaces() -> tuple[Any, ...]:
    return (
        b"",
        b"\x0a" * 100_000,
        b"\x0a\x00" * 500_000,
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\xff" * 100_000,
        b"\x0a\x04\x22\x02\x08\x01" * 100_000,
        lambda: xspace(Plane("/host:metadata", kinds=(Kind("jit_step(1)", {"Hlo Proto": b"\x0a\xff\x01"}),))),
        lambda: xspace(Plane("/device:TPU:0", {"XLA Ops": [(0.0, 1.0, "a", {})] * 100_000})),
    )


def _trace(path: Path) -> None:
    found = xplane.read(path)
    verdict(found.summary, found.profile(), found.peaks)


def _logs() -> tuple[Any, ...]:
    return (
        b"completed step: 1e999, seconds: 1e-999, loss: nan\n",
        b"completed step: " + b"9" * 1900 + b", seconds: 1, loss: 1\n",
        b"completed step: 1, seconds: 1" + b"0" * 1900 + b", loss: 1\n",
        b"completed step: 1, seconds: 0." + b"0" * 1900 + b"1, loss: 1\n",
        b"iteration 1/ 2 | elapsed time per iteration (ms): 1e9999 |\n",
        b"\n".join(b"completed step: %d, seconds: 0.5, loss: 1" % i for i in range(200_000)),
        b"step: 1  loss: 1  memory: 99999999999999999999999999999999999999999999999GiB(1%)  tps: 1\n",
        b"1" * 3_000_000 + b"\n",
        b" \t" * 1_000_000 + b"\n",
    )


def _log(name: str, data: bytes) -> None:
    log = TEMPLATES[name].log
    patterns = tuple(each.pattern for each in log.plan_used)
    found = Follower(
        reading=Reading(log=log, wanted={"tensor": "2"}, plan_used=patterns, tokens_per_step=65536, devices=8)
    )
    for start in range(0, len(data), 2**16):
        found.take(data[start : start + 2**16])
    found.finish()
