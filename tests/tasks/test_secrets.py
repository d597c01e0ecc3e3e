"""A secret in the environment or typed by mistake stands in no file, event, report, manifest, error or traceback."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from asap_ray.__main__ import _told
from asap_ray.redaction import REDACTED, hidden
from asap_ray.tasks import compiling
from asap_ray.tiers.launch import _scrub
from tests.agents.llm_server import LlmServer, fails, says
from tests.tasks.pretend import Pretend
from tests.tasks.test_llm import LOOP, model, role_of

KEY = "sk-proj-0123456789abcdefABCDEF"
PLAIN = "correct-horse-battery"
"""A secret that looks like none: it is known by the name of its variable alone."""
TYPED = "hf_abcdefghijklmnopqrstuvwxyz"
SECRETS = (KEY, PLAIN, TYPED)
RUN = ("+model=tiny", "hardware=v5e-4", "tiers=roofline", "run_dir=run")


@pytest.fixture(autouse=True)
def environment(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("MY_WEBHOOK_TOKEN", PLAIN)
    monkeypatch.setenv("ASAP_RAY_WEBHOOK", f"https://hooks.example/{PLAIN}")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def leaks(*texts: str) -> list[str]:
    """Where a secret stands: in a text, or in a file below the working directory."""
    files = [path for path in Path().rglob("*") if path.is_file()]
    found = [str(path) for path in files if any(each.encode() in path.read_bytes() for each in SECRETS)]
    return found + [text for text in texts if any(each in text for each in SECRETS)]


def typed(monkeypatch: pytest.MonkeyPatch, command: Any, *words: str) -> Any:
    """A command whose words the record sees too, as where it is started from a shell."""
    monkeypatch.setattr(sys, "argv", ["asap-ray", *words])
    return command(*words)


@pytest.mark.parametrize("output", ["json", "plain"])
def test_a_run_and_its_files_hold_no_secret(command: Any, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    words = (*RUN, f"output={output}", f"launch.options=[--token={TYPED}]")
    ended = typed(monkeypatch, command, *words)
    assert ended.status == 1  # launch.options is for another task: the error must not quote it
    assert leaks(ended.out, ended.err) == []
    assert (typed(monkeypatch, command, *RUN, f"output={output}", f"space.forbid=[{{remat: {TYPED}}}]")).status == 1
    assert leaks() == []
    assert typed(monkeypatch, command, *RUN, f"output={output}").status == 0
    assert leaks() == []


def test_what_is_shown_and_exported_later_holds_no_secret(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = typed(monkeypatch, command, *RUN, "output=plain")
    assert ended.status == 0, ended.err
    for words in (("task=show",), ("task=export", "to=[jax]"), ("task=doctor", *RUN[:2])):
        ended = typed(monkeypatch, command, *words, "run_dir=run", "output=plain")
        assert leaks(*ended[1:]) == [], words


@pytest.mark.parametrize(
    "echo",
    [
        lambda told: fails(500, f"your header was Bearer {KEY}"),
        lambda told: fails(400, f"no such key: {KEY}"),
        lambda told: says({"ideas": [], "last": [], "note": f"the key is {KEY}"}),
    ],
)
def test_an_endpoint_that_repeats_the_key_tells_nobody(
    command: Any, pretend: type[Pretend], monkeypatch: pytest.MonkeyPatch, echo: Any
) -> None:
    monkeypatch.setattr(compiling, "installed", lambda setting, ours: True)
    well = model()
    with LlmServer(lambda body: echo(body) if role_of(body) == "proposal" else well(body)) as server:
        ended = command(*LOOP, "agents=llm", f"llm.base_url={server.base_url}", "run_dir=run")
    assert leaks(*ended[1:]) == []


@pytest.mark.parametrize("target", ["kuberay", "slurm", "ray_job", "local"])
def test_a_manifest_holds_no_secret_and_a_typed_one_is_refused(
    command: Any, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    wheel = Path("asap_ray-0-py3-none-any.whl")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("asap_ray/__init__.py", "")
    words = ("task=launch", f"launch.target={target}", f"launch.wheel={wheel}", *RUN[:3])
    ended = typed(monkeypatch, command, *words, "output=plain")
    assert ended.status == 0, ended.err
    assert leaks(ended.out, ended.err) == []
    ended = typed(monkeypatch, command, *words, f"model.source={TYPED}")
    assert (ended.status, "(hidden)" in ended.err) == (1, True)
    assert leaks(ended.out, ended.err) == []


@pytest.mark.parametrize(
    "words",
    [
        (f"llm.base_url=https://user:{PLAIN}@host/v1", "agents=llm"),
        (f"llm.base_url=https://host/v1?api_key={TYPED}", "agents=llm"),
        (f"llm.base_url=https://{PLAIN}:x@host/v1", "agents=llm"),
        (f"seed={TYPED}",),
        (f"plan=token={TYPED}",),
        (f"config_dir=/nowhere/{TYPED}",),
        (f"baseline=password={TYPED}",),
        (f"{TYPED}=1",),
        (f"nightly.webhook_hosts=[{PLAIN}]",),
    ],
)
def test_an_error_does_not_quote_a_secret(command: Any, words: tuple[str, ...]) -> None:
    ended = command(*RUN, *words)
    assert ended.status == 1
    assert leaks(ended.out, ended.err) == []


@pytest.mark.parametrize("name", ["OPENAI_BASE_URL", "ASAP_RAY_LLM_KEY", "ASAP_RAY_WEBHOOK"])
def test_a_variable_that_cannot_be_used_is_named_and_not_quoted(
    command: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, f"ftp://user:{PLAIN}@{TYPED}/ {KEY}")
    for words in ((*RUN, "agents=llm"), ("task=nightly", "nightly=small", "nightly.webhook_hosts=[a.example]")):
        ended = command(*words)
        assert leaks(ended.out, ended.err) == []


def test_a_log_that_is_kept_lacks_what_its_trainer_was_given(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    log.write_bytes(b"step 1\xff\nlogin with " + PLAIN.encode() + b"\n")
    _scrub(log, [PLAIN])
    assert log.read_bytes() == b"step 1\xff\nlogin with ***\n"


def test_a_traceback_tells_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise RuntimeError(f"Authorization: Bearer {KEY}; {PLAIN}")
    except RuntimeError as error:
        _told(RuntimeError, error, error.__traceback__)
    told = capsys.readouterr().err
    assert "RuntimeError" in told
    assert leaks(told) == []


def test_plain_values_are_gone_through() -> None:
    given = {"a": [KEY, ("x", PLAIN)], TYPED: 1, "n": None}
    assert hidden(given, os.environ) == {"a": [REDACTED, ("x", REDACTED)], REDACTED: 1, "n": None}
