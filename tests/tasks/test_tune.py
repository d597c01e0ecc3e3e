"""`task=tune` from the command line to its files: small models, every layer for real."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asap_ray import drafts
from asap_ray.errors import AsapError
from asap_ray.executor import local
from asap_ray.ledger import Ledger
from asap_ray.plan import Plan
from asap_ray.tasks import running, tune
from asap_ray.tiers.protocol import Outcome

TINY = ("+model=tiny", "hardware=v5e-4", "run_dir=run")
# DESIGN.md: what summary.json and output=json hold.
KEYS = {
    "task", "model", "hardware", "stack", "seed", "best", "baseline", "space", "trials", "resumed", "stop_reason",
    "agents", "llm", "wall_s", "versions", "certificate",
}  # fmt: skip
BEST_KEYS = {
    "plan", "line", "step_time_s", "interval_s", "floor_s", "serial_s", "mfu", "tokens_per_s", "hbm_bytes", "source",
}  # fmt: skip
KINDS = ["start", "swept", "certificate", "answer"]
FILES = {
    *("summary.json", "leaderboard.csv", "leaderboard.json", "leaderboard.md", "report.html", "events.jsonl"),
    "plans",
}


def answer(ended: Any) -> dict[str, Any]:
    assert ended.status == 0, ended.err
    return json.loads(ended.out)


def test_plain_output_says_what_is_best_and_why(command) -> None:
    ended = command(*TINY, "output=plain")
    assert (ended.status, ended.err) == (0, "")
    for title in ("Space of v5e-4:", "Best plan on v5e-4:", "Why:", "Next:", "How much better another plan could be:"):
        assert title in ended.out
    assert "No trial stands behind these figures" in ended.out
    assert "\x1b" not in ended.out
    found = json.loads(Path("run/summary.json").read_text())
    assert found["best"]["line"] in ended.out


def test_json_stands_alone_on_stdout_with_the_keys_of_the_contract(command) -> None:
    ended = command(*TINY, "output=json")
    found = answer(ended)
    assert set(found) == KEYS
    assert set(found["best"]) == BEST_KEYS
    assert set(found["space"]) == {"total", "legal", "fitting", "removed"}
    assert set(found["trials"]) == {"complete", "pruned", "infeasible", "failed", "timeout"}
    assert (found["task"], found["model"], found["hardware"], found["stack"]) == ("tune", "tiny", "v5e-4", "maxtext")
    assert (found["baseline"], found["seed"], found["resumed"]) == (None, 0, False)
    assert json.loads(Path("run/summary.json").read_text()) == found
    best = found["best"]
    assert best["floor_s"] <= best["interval_s"][0] <= best["step_time_s"] <= best["interval_s"][1]
    assert best["tokens_per_s"] == pytest.approx(32 * 128 / best["step_time_s"])
    assert Plan.parse(best["line"]).line == best["line"]
    removed = sum(n for rule, n in found["space"]["removed"].items() if rule != "memory")
    assert found["space"]["total"] == found["space"]["legal"] + removed


@pytest.mark.usefixtures("drawn_page")
def test_every_file_is_there_and_can_be_read(command) -> None:
    found = answer(command(*TINY, "output=json", "top=7"))
    assert {path.name for path in Path("run").iterdir()} == FILES
    rows = list(csv.DictReader(io.StringIO(Path("run/leaderboard.csv").read_text())))
    listed = json.loads(Path("run/leaderboard.json").read_text())
    assert len(rows) == len(listed) == 7
    assert found["best"]["line"] in rows[0].values()
    assert Path("run/leaderboard.md").read_text().count("\n") >= 9
    page = Path("run/report.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")


def test_the_certificate_is_about_the_best_plan(command) -> None:
    found = answer(command(*TINY, "output=json"))
    bounds, best = found["certificate"], found["best"]
    assert bounds["best_step_s"] == best["step_time_s"]
    assert bounds["measured"] is False
    assert bounds["untried"] == found["space"]["fitting"] - 1
    assert (bounds["credible"]["probability"], bounds["credible"]["holds_for"]) == (0.95, "each untried plan by itself")
    for kind in ("hard", "credible"):
        faster = 100 * max(best["step_time_s"] / bounds[kind]["bound_s"] - 1, 0)
        assert bounds[kind]["at_most_faster_percent"] == pytest.approx(faster)
    assert bounds["hard"]["bound_s"] <= bounds["credible"]["bound_s"]
    assert {each["bound"] for each in bounds["tighten"]} == {"credible", "hard"}
    assert best["line"] not in {each["line"] for each in bounds["tighten"]}


def test_a_plan_without_rivals_has_nothing_left_to_try(command) -> None:
    pins = "space.fix={fsdp: 4, micro_batch: 8, remat: full, attention: flash}"
    ended = command(*TINY, pins, "output=plain")
    found = json.loads(Path("run/summary.json").read_text())
    assert found["space"]["fitting"] == 1
    assert found["certificate"]["hard"] == {
        "bound_s": None, "at_most_faster_percent": 0.0, "contenders": 0, "at_bound": 0,
    }  # fmt: skip
    assert found["certificate"]["tighten"] == []
    assert "no other legal plan fits: nothing is left to try" in ended.out


def test_the_heading_is_printed_before_the_report_is_drawn(command, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    seen: list[str] = []

    def drawn(*_: object) -> None:
        seen.append(capsys.readouterr().out)

    monkeypatch.setattr(tune, "write_report", drawn)
    assert command(*TINY, "output=plain").status == 0
    assert seen[0].startswith("  tiny ")


def test_events_tell_the_run(command) -> None:
    found = answer(command(*TINY, "output=json"))
    start, swept, certificate, end = Ledger(Path("run")).events()
    assert [start["kind"], swept["kind"], certificate["kind"], end["kind"]] == KINDS
    assert (swept["slice"], swept["legal"]) == ("v5e-4", found["space"]["legal"])
    assert swept["removed"] == found["space"]["removed"]
    assert swept["ranked"][0]["step_time_s"] == found["best"]["step_time_s"]
    assert certificate["slice"] == "v5e-4"
    assert certificate["certificate"]["hard"]["bound_s"] == found["certificate"]["hard"]["bound_s"]
    assert end["best"] == found["best"]["line"]


def test_the_same_command_gives_the_same_answer_and_a_longer_ledger(command) -> None:
    first, second = answer(command(*TINY, "output=json")), answer(command(*TINY, "output=json"))
    assert first | {"wall_s": 0} == second | {"wall_s": 0}
    assert [event["kind"] for event in Ledger(Path("run")).events()] == KINDS * 2


def test_several_slices_are_priced_in_processes_and_ranked(command, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = local._start
    monkeypatch.setattr(local, "_start", lambda job: started.append(job.name) or start(job))
    ended = command("+model=llama3_2_1b", "hardware=[v5e-16,v5p-32,h100x8]", "run_dir=run", "output=json")
    found = answer(ended)
    assert sorted(started) == [f"hardware={name}: pricing it" for name in ("h100x8", "v5e-16", "v5p-32")]
    ranking = found["hardware_ranking"]
    assert {each["hardware"] for each in ranking} == {"v5e-16", "v5p-32", "h100x8"}
    for figure, sign in (("step_time_s", 1), ("tokens_per_s", -1), ("usd_per_million_tokens", 1)):
        value = {e["hardware"]: sign * (e["best"] if figure == "step_time_s" else e)[figure] for e in ranking}
        order = sorted(value, key=lambda name: value[name])
        assert {each["hardware"]: each["rank"][figure] for each in ranking} == {n: i for i, n in enumerate(order, 1)}
    times = [each["best"]["step_time_s"] for each in ranking]
    assert times == sorted(times)
    assert found["hardware"] == ranking[0]["hardware"]
    assert found["best"] == ranking[0]["best"]
    alone = answer(command("+model=llama3_2_1b", "hardware=v5e-16", "run_dir=one", "output=json"))
    assert alone["best"] == next(each["best"] for each in ranking if each["hardware"] == "v5e-16")
    assert [event["slice"] for event in Ledger(Path("run")).events("swept")] == ["v5e-16", "v5p-32", "h100x8"]


def test_a_slice_where_nothing_fits_is_ranked_last(command) -> None:
    found = answer(command("+model=llama7b", "hardware=[v5e-1,v5p-32]", "run_dir=run", "output=json"))
    assert [each["hardware"] for each in found["hardware_ranking"]] == ["v5p-32", "v5e-1"]
    assert found["hardware_ranking"][1]["best"] is None


def test_a_process_that_fails_ends_in_one_line(command, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(jobs: Any, workers: int) -> Any:
        yield Outcome(job=jobs[0], status="failed", reason="its process was ended by SIGKILL")

    monkeypatch.setattr(local, "run", failing)
    ended = command("+model=tiny", "hardware=[v5e-4,v5e-8]", "run_dir=run")
    assert (ended.status, ended.out) == (1, "")
    assert ended.err == "asap-ray: hardware=v5e-4: pricing it failed: its process was ended by SIGKILL\n"
    assert [event["kind"] for event in Ledger(Path("run")).events()] == ["start", "error"]


@pytest.mark.parametrize("form", ["line", "file", "summary", "explanation"])
def test_a_baseline_comes_from_a_line_or_a_file(command, form: str) -> None:
    line = "fsdp=4 micro_batch=4 accumulation=2 remat=full"
    given = line
    if form == "file":
        Path("mine.txt").write_text(line + "\n")
        given = "mine.txt"
    elif form != "line":
        task = "tune" if form == "summary" else "explain"
        pins = "space.fix={fsdp: 4, micro_batch: 4, remat: full}" if form == "summary" else f"plan={line}"
        answer(command(*TINY, f"task={task}", pins, "run_dir=before", "output=json"))
        given = f"before/{'summary' if form == 'summary' else 'explanation'}.json"
    found = answer(command(*TINY, f"baseline={given}", "output=json"))
    baseline = Plan.parse(found["baseline"]["line"])
    assert (baseline.axes["fsdp"], baseline.micro_batch, baseline.accumulation, baseline.remat) == (4, 4, 2, "full")
    assert found["baseline"]["step_time_s"] >= found["best"]["step_time_s"]
    plain = command(*TINY, f"baseline={given}", "output=plain")
    assert "baseline" in plain.out
    assert found["baseline"]["line"] in plain.out


BASELINES = {
    "nowhere.json": ("baseline=nowhere.json", "no such file"),
    "empty": ("baseline=empty", "holds no plan"),
    "odd.json": ("baseline=odd.json", "holds no plan"),
    "list.json": ("baseline=list.json", "holds no plan"),
    "bytes": ("baseline=bytes", "not text"),
    "folder": ("baseline=folder", "no such file"),
    "huge": ("baseline=huge", "at most 4,194,304 bytes"),
    "fsdp=4 tensr=2": ("baseline=tensr=2", "unknown field", "did you mean tensor?"),
    "fsdp=3 remat=full": ("baseline.fsdp=3", "allowed with all else as it is: 1, 2, 4"),
    "fsdp=4 " + "remat=full " * 40: ("remat is given twice",),
}


def test_a_baseline_is_of_one_slice(command) -> None:
    ended = command("+model=tiny", "hardware=[v5e-4,v5e-8]", "baseline=fsdp=4 remat=full", "run_dir=run")
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert "baseline=fsdp=4 remat=full: allowed: with one slice only, and hardware has v5e-4, v5e-8" in ended.err


@pytest.mark.parametrize("given", BASELINES, ids=lambda given: given[:20])
def test_a_baseline_that_is_none_ends_in_one_line(command, given: str) -> None:
    Path("empty").touch()
    Path("odd.json").write_text('{"best": 3}')
    Path("list.json").write_text('{"line": [1]}')
    Path("bytes").write_bytes(b"\xff\xfe\x00")
    Path("folder").mkdir()
    with Path("huge").open("wb") as file:
        file.truncate(5 * 2**20)
    ended = command(*TINY, f"baseline={given}")
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert [word for word in BASELINES[given] if word not in ended.err] == []
    assert not Path("run").exists()


def test_a_hugging_face_config_is_tuned(command) -> None:
    Path("mymodel").mkdir()
    config = {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "vocab_size": 512,
    }
    Path("mymodel/config.json").write_text(json.dumps(config))
    ended = command(
        "+model.hf_config=mymodel/config.json", "hardware=v5e-4", "workload.seq_len=256", "output=json", "run_dir=run"
    )
    found = answer(ended)
    assert found["model"] == "mymodel"
    assert found["best"]["tokens_per_s"] == pytest.approx(1024 * 256 / found["best"]["step_time_s"])


def test_pins_and_bans_hold(command) -> None:
    found = answer(command(*TINY, "space.fix={tensor: 2}", "space.forbid=[{remat: full}]", "output=json"))
    assert found["best"]["plan"]["tensor"] == 2
    rows = json.loads(Path("run/leaderboard.json").read_text())
    assert "remat=full" not in json.dumps(rows)
    assert {"fix", "forbid"} <= set(found["space"]["removed"])


def test_a_plan_is_for_explain_only(command) -> None:
    ended = command(*TINY, "plan=fsdp=4")
    assert (ended.status, ended.out) == (1, "")
    assert ended.err == "asap-ray: plan=fsdp=4: for task=explain only; task=tune is pinned by space.fix\n"


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_fills_while_the_report_is_written_ends_in_one_line(
    command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(drafts.os, "replace", _full)
        ended = command(*TINY, "output=json")
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert ended.err.startswith(f"asap-ray: run_dir={Path.cwd() / 'run'}: a directory that can be written to")
    assert "No space left on device" in ended.err
    assert {path.name for path in Path("run").iterdir()} == {"events.jsonl"}, "no half-written file is left"


def test_a_full_disk_ends_in_one_line_before_anything_is_priced(command, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("os.fsync", _full)
        broken.setattr(tune, "sweep_slices", lambda *_: pytest.fail("priced"))
        ended = command(*TINY)
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert "run_dir=" in ended.err
    assert "No space left on device" in ended.err


@pytest.mark.parametrize("task", ["tune", "explain"])
def test_a_run_dir_that_cannot_be_made_ends_in_one_line(command, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # By patching, since the super-user may write anywhere.
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as broken:
        broken.setattr(Path, "mkdir", refused)
        ended = command(*TINY, f"task={task}")
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert "a directory that can be written to (Permission denied)" in ended.err


def test_progress_is_for_terminals(command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "PRICED_AT_ONCE", 1)
    ended = command(*TINY, "output=json")
    assert answer(ended)
    assert "tiny" in ended.err, "the heading of a large space comes first, beside the JSON"
    assert "\x1b" not in ended.err
    assert "pricing" not in ended.err


def test_the_error_of_a_worker_is_the_users_own(command, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(jobs: Any, workers: int) -> Any:
        yield Outcome(job=jobs[0], status="failed", reason="x", error=AsapError("the one line"))

    monkeypatch.setattr(local, "run", refusing)
    assert command("+model=tiny", "hardware=[v5e-4,v5e-8]").err == "asap-ray: the one line\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_behind_stdout_ends_in_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        words = [sys.executable, "-m", "asap_ray", *TINY, "tiers=roofline"]
        ended = subprocess.run(words, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "asap-ray: what was found cannot be printed: No space left on device\n"
