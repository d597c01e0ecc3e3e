"""Inputs that ask for much memory, time or depth: small enough to be made here, and large for whoever reads them."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

Bomb = Callable[[], bytes]
DEEP = 200_000
MANY = 5_000_000

JSON: tuple[Bomb, ...] = (
    lambda: b"[" * DEEP,
    lambda: b"[" * DEEP + b"]" * DEEP,
    lambda: b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    lambda: b'{"kind": "start", "a": ' + b"[" * 900 + b"]" * 900 + b"}\n",
    lambda: b"9" * MANY,
    lambda: b'{"num_hidden_layers": ' + b"9" * 4000 + b"}",
    lambda: b'{"kind": ' + b"9" * MANY + b"}\n",
    lambda: b'{"kind": "start", "a": ' + b"[" * DEEP + b"\n",
    lambda: b'{"kind": "start", "a": ' + b"[" * DEEP + b"]" * DEEP + b"}\n",
    lambda: b'{"a": "' + b"x" * (4 * MANY) + b'"}',
    lambda: b"[" + b"1," * MANY + b"1]",
    lambda: b'{"a": 1e99999, "b": NaN, "c": -Infinity}',
    lambda: b'{"\\ud800": "\\udfff"}',
    lambda: b"\xff\xfe{\x00}\x00",
    lambda: b"",
    lambda: b"\x00" * 1000,
    lambda: b"null",
    lambda: b"[]",
)
"""Depth, digits, length, and what is JSON to some only."""

YAML: tuple[Bomb, ...] = (
    lambda: b"".join(
        b"a%d: &a%d [%s]\n" % (i, i, b", ".join([b"*a%d" % (i - 1)] * 9) if i else b"x") for i in range(12)
    ),
    lambda: b"a: &a [*a]\n",
    lambda: b"a: &a {x: 1}\nb:\n  <<: *a\n",
    lambda: b"[" * 5000,
    lambda: b"{a: " * 3000 + b"1" + b"}" * 3000,
    lambda: b"".join(b" " * i + b"a:\n" for i in range(3000)),
    lambda: b"- " * 3000 + b"a",
    lambda: b"a: " + b"9" * 100_000,
    lambda: b"a: 0x" + b"f" * 1_000_000,
    lambda: b"a: 1" + b":59" * 100_000,
    lambda: b"a: " + b"1" * 50_000 + b".5:0",
    lambda: b"a: 2026-13-45\n",
    lambda: b"a: 2026-01-01T99:99:99Z\n",
    lambda: b"a: !!binary ////\nb: !!set {x}\nc: !!omap [a: 1]\n",
    lambda: b"a: !!python/object/apply:os.system [id]\n",
    lambda: b"a: .nan\nb: .inf\nc: -.INF\n",
    lambda: b"? [a, b]\n: 1\n",
    lambda: b"? {a: 1}\n: 1\n",
    lambda: b"1: 1\ntrue: 2\nnull: 3\n",
    lambda: b"a: 1\n---\nb: 2\n",
    lambda: b"%TAG ! tag:x,2000:\n---\na: !b c\n",
    lambda: b"a: 'x\n",
    lambda: b"\xff\xfea\x00",
    lambda: b"a: \x1b[2J\n",
    lambda: b'a: "\\ud800\\x1b[2J"\n',
    lambda: b"",
    lambda: b"- a\n",
    lambda: b"x: " + b"y" * (5 * 2**20),
    lambda: b"".join(b"k%d: 1\n" % i for i in range(20_000)),
    lambda: b"a: ${oc.env:HOME}\nb: ${c}\nc: ${b}\n",
    lambda: b"name: ???\n",
)
"""Aliases that stand for 10^12 nodes, numbers of other bases, tags, keys that are no text, and interpolations."""

TOML: tuple[Bomb, ...] = (
    lambda: b"a = " + b"[" * 20_000,
    lambda: b"[" + b"a." * 20_000 + b"a]\n",
    lambda: b"a = " + b"9" * 100_000,
    lambda: b"a = 0x" + b"f" * 1_000_000,
    lambda: b"a = nan\nb = inf\n",
    lambda: b"a = 1979-05-27T07:32:00Z\n[parallelism]\ntensor_parallel_degree = 1979-05-27\n",
    lambda: b"".join(b"[a%d]\n" % i for i in range(50_000)),
    lambda: b'"\\u001b[2J" = 1\n[training]\nx = "\\u0000"\n',
)

TEXT: tuple[Bomb, ...] = (
    lambda: b"x" * (5 * 2**20),
    lambda: b"\n" * 1_000_000,
    lambda: b"a=1 " * 500_000,
    lambda: b"--a " * 500_000,
    lambda: b"'" * 100_001,
    lambda: b"$A" * 100_000,
    lambda: b"${" * 100_000,
    lambda: b"\\\n" * 100_000,
    lambda: b"\x1b[" * 100_000,
    lambda: b"\xed\xa0\x80" * 100,
    lambda: b"(" * 100_000,
    lambda: b"{" * 100_000,
)
"""Length, quotes and brackets that never end."""


def zipped(inner: bytes) -> bytes:
    """The bytes behind gzip, a thousandth of their size."""
    return gzip.compress(inner, 9, mtime=0)


def gzip_bomb() -> bytes:
    """A gigabyte of spaces in a megabyte."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=6, mtime=0) as file:
        for _ in range(256):
            file.write(b" " * 4 * 2**20)
    return out.getvalue()


def npz(shapes: dict[str, tuple[int, ...]], origin: str = "{}") -> bytes:
    """An archive of arrays whose headers claim these shapes and whose bodies are short."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, shape in shapes.items():
            body = io.BytesIO()
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(body, header)
            archive.writestr(f"{name}.npy", body.getvalue() + b"\0" * 64)
        told = io.BytesIO()
        np.lib.format.write_array(told, np.array(origin))
        archive.writestr("origin.npy", told.getvalue())
    return out.getvalue()


def npz_bomb(names: tuple[str, ...]) -> bytes:
    """An archive of a few MB whose arrays are zeros of a gigabyte each."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names[:1]:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (2**28,)})
                for _ in range(1024):
                    file.write(bytes(2**20))
        told = io.BytesIO()
        np.lib.format.write_array(told, np.array(json.dumps({"version": 1})))
        archive.writestr("origin.npy", told.getvalue())
    return out.getvalue()


def parquet_bomb(names: tuple[str, ...], rows: int = 3_000_000) -> bytes:
    """A table of millions of equal rows in some KB."""
    out = io.BytesIO()
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array(["x" * 1000]))
    with parquet.ParquetWriter(out, pa.schema([(name, column.type) for name in names]), compression="zstd") as writer:
        writer.write_table(pa.table(dict.fromkeys(names, column)))
    return out.getvalue()


def zip_bomb() -> bytes:
    """An archive of a gigabyte of spaces."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a.py", "w", force_zip64=True) as file,
    ):
        for _ in range(1024):
            file.write(b" " * 2**20)
    return out.getvalue()
