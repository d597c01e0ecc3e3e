"""Results that survive a run: whole or not at all, and only those that would come again."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from asap_ray.compiler.request import Build, packed
from asap_ray.tiers.cache import Cache, default_cache

KEY = "ab" + "0" * 62
BUILD = Build(status="complete", memory={"peak": 5}, hlo=packed("the program"), seconds={"compile": 1.0})


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "deep" / "compile")


def files(cache: Cache) -> list[str]:
    return [path.name for path in cache.folder.rglob("*") if path.is_file()]


def test_what_was_written_is_read_back(cache: Cache) -> None:
    assert cache.read(KEY) is None
    cache.write(KEY, BUILD)
    assert Cache(cache.folder).read(KEY) == BUILD
    assert files(cache) == [f"{KEY}.json.gz"]


def test_a_refusal_is_kept_but_no_crash(cache: Cache) -> None:
    refused = Build(status="infeasible", needed_bytes=2.0, limit_bytes=1.0, over_bytes=1.0)
    cache.write(KEY, refused)
    assert cache.read(KEY) == refused
    other = KEY[::-1]
    cache.write(other, Build(status="failed", reason="x"))
    assert cache.read(other) is None


@pytest.mark.parametrize("damage", ["cut", "empty", "not gzip", "not json", "other fields", "bit"])
def test_a_damaged_entry_is_as_none(cache: Cache, damage: str) -> None:
    cache.write(KEY, BUILD)
    path = cache.folder / KEY[:2] / f"{KEY}.json.gz"
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    path.write_bytes(
        {
            "cut": whole[: len(whole) // 2],
            "empty": b"",
            "not gzip": b"hello",
            "not json": gzip.compress(b"{"),
            "other fields": gzip.compress(b'{"state": 1, "hlo": ""}'),
            "bit": bytes(flipped),
        }[damage]
    )
    assert cache.read(KEY) is None
    cache.write(KEY, BUILD)
    assert cache.read(KEY) == BUILD


def test_a_write_that_fails_leaves_the_old_entry_and_no_rest(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write(KEY, BUILD)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("asap_ray.tiers.cache.os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        cache.write(KEY, Build(status="infeasible"))
    assert cache.read(KEY) == BUILD
    assert files(cache) == [f"{KEY}.json.gz"]


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/big/disk")
    assert default_cache() == Path("/big/disk/asap_ray/compile")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the standard says to ignore it
    monkeypatch.setenv("HOME", "/home/me")
    assert default_cache() == Path("/home/me/.cache/asap_ray/compile")


def test_what_killed_processes_had_begun_to_write_goes_after_an_hour(cache: Cache) -> None:
    cache.write(KEY, BUILD)
    (folder,) = {path.parent for path in cache.folder.rglob("*.json.gz")}
    (old, new) = (folder / ".new-old", folder / ".new-now")
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    cache.write(KEY, BUILD)
    assert not old.exists()
    assert new.exists(), "somebody may be at it"
