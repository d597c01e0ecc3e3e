"""The documentation holds: its commands are taken, fast ones print what pages show, links lead somewhere."""

from __future__ import annotations

import itertools
import json
import logging
import re
import warnings
from pathlib import Path

import pytest
import yaml

from asap_ray.knowledge import card_from_mapping
from asap_ray.overrides import configure
from asap_ray.settings import setting_files
from asap_ray.tasks.bundles import bundle_from_mapping
from asap_ray.tasks.night.matrix import cells_from_mapping
from asap_ray.tiers.templates import template_from_mapping
from asap_ray.usage import keys
from tests.pages import EVERY, PAGES, ROOT, Fence, anchors, fences, links, missing

WITH_COMMANDS = {name: path for name, path in EVERY.items() if any(each.commands for each in fences(path))}
EXECUTED = [name for name, path in EVERY.items() if any(each.mark == "run" for each in fences(path))]
UNMARKED = ("README.md",)
"""Whose main output is held below, and whose other commands are composed."""


def composed(words: list[str]) -> None:
    """Take a command as far as a checked configuration; folders of the reader's own stand in as empty ones."""
    for flag, folder in itertools.pairwise(words):
        if flag == "--config-dir":
            Path(folder).mkdir(parents=True, exist_ok=True)
    if "--config-dir" in words:
        at = words.index("--config-dir")
        words = [*words[:at], f"config_dir={words[at + 1]}", *words[at + 2 :]]
    if words[:1] != ["--help"]:
        configure(words)


@pytest.mark.parametrize("name", WITH_COMMANDS)
def test_every_command_of_a_page_is_one_that_is_taken(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for fence in fences(EVERY[name]):
        if fence.mark == "file":
            write(fence)
    for fence in fences(EVERY[name]):
        for words in fence.commands:
            composed(words)


@pytest.mark.parametrize("name", [name for name in WITH_COMMANDS if name not in UNMARKED])
def test_a_page_says_of_each_block_of_commands_whether_it_is_run_or_why_not(name: str) -> None:
    blocks = [fence for fence in fences(EVERY[name]) if fence.commands]
    assert [f"line {each.line}" for each in blocks if each.mark not in ("run", "composed")] == []
    assert [each.line for each in blocks if each.mark == "composed" and len(each.rest) < 8] == []


def write(fence: Fence) -> None:
    path = Path(fence.rest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(fence.text)


@pytest.mark.parametrize("name", EXECUTED)
def test_commands_that_are_run_print_what_the_page_shows(name: str, command, monkeypatch) -> None:
    monkeypatch.setattr("asap_ray.report.files.page", lambda answer: "<!doctype html>")  # drawn in tests of its own
    printed = None
    for fence in fences(EVERY[name]):
        if fence.mark == "file":
            write(fence)
        elif fence.mark == "run":
            printed = ""
            for words in fence.commands:
                ended = command(*words)
                assert (words, ended.status, ended.err) == (words, 0, ended.err)
                printed += ended.out
        elif printed is not None and fence.language == "text":
            assert missing(fence.text, printed) == [], f"{name}:{fence.line} shows what is not printed now"
            printed = None


def test_the_main_job_prints_what_the_readme_shows(command, monkeypatch) -> None:
    monkeypatch.setattr("asap_ray.report.files.page", lambda answer: "<!doctype html>")
    (shown,) = (fence for fence in fences(EVERY["README.md"]) if fence.language == "text")
    ended = command("+model=llama70b", "tiers=roofline")
    assert (ended.status, ended.err) == (0, "")
    assert missing(shown.text, ended.out) == []


READERS = {
    "command.md": template_from_mapping,
    "compile.md": bundle_from_mapping,
    "memory.md": card_from_mapping,
    "nightly.md": cells_from_mapping,
}
"""By page, what reads the settings file that it shows."""


@pytest.mark.parametrize("name", READERS)
def test_a_settings_file_that_is_shown_can_be_read(name: str) -> None:
    (shown,) = (fence for fence in fences(PAGES[name]) if fence.language == "yaml")
    assert READERS[name]("mine", yaml.safe_load(shown.text))


@pytest.mark.parametrize(("page", "group"), [("plans.md", "stack"), ("compile.md", "xla"), ("command.md", "command")])
def test_a_page_has_every_name_of_the_group_that_it_is_about(page: str, group: str) -> None:
    text = PAGES[page].read_text()
    assert [name for name in setting_files(group) if f"`{name}`" not in text] == []


def test_a_line_that_is_not_printed_is_seen() -> None:
    assert missing("a\nbd …", "a\nbcd\n") == ["bd …"]
    assert missing("a\nb…", "a\nx\nbcd\n") == []
    assert missing("b\na", "a\nb\n") == ["a"]
    assert missing("in  …/runs/x\nend (1.20 s)", "in  /tmp/y/runs/x\nend (980 ms)\n") == []


@pytest.mark.parametrize("name", EVERY)
def test_links_lead_to_a_page_that_is_there_and_to_a_heading_in_it(name: str) -> None:
    broken = []
    for link in links(EVERY[name]):
        path, _, anchor = link.partition("#")
        there = (EVERY[name].parent / path).resolve() if path else EVERY[name]
        if re.match(r"[a-z]+:", link):
            continue
        if not there.is_file() or (anchor and anchor not in anchors(there)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_names_no_other_page_without_a_link(name: str) -> None:
    text = re.sub(r"```.*?```", "", PAGES[name].read_text(), flags=re.DOTALL)
    assert re.findall(r"(?<![\w/`])docs/[a-z]+\.md", text) == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a warning ends it."""
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MkDocs and its theme, in code of theirs
        patched.setenv("NO_MKDOCS_2_WARNING", "1")
        from mkdocs.commands import build
        from mkdocs.config import load_config

        where = tmp_path_factory.mktemp("site")
        logging.getLogger("mkdocs").setLevel(logging.WARNING)
        build.build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(where)))
        return where


def test_the_site_is_built_with_every_page_and_asks_nothing_of_another_host(site: Path) -> None:
    pages = {path.stem for path in site.glob("*.html")}
    assert pages >= {path.removesuffix(".md") for path in PAGES} | {"measured"}
    assert '<img alt="Layers and their imports' in (site / "architecture.html").read_text()
    assert ">physics</text>" in (site / "layers.svg").read_text()
    asked = []
    for page in site.glob("*.html"):
        asked += re.findall(r'<(?:script|link|img|iframe)\b[^>]*(?:src|href)="(https?:[^"]+)"', page.read_text())
    assert asked == []


def test_the_reference_has_every_key_with_what_help_says(site: Path, command) -> None:
    page = (site / "reference.html").read_text()
    helped = " ".join(command("--help").out.split())
    for key in keys():
        assert f"<code>{key.name}</code>" in page
        assert f"{key.name}={key.default} {key.help}" in helped
    for allowed in ("a whole number from 0 to 10,000", "a share from 0 to 0.9", "above 0", "local, ray_job, slurm"):
        assert f"<td>{allowed}" in page
    index = json.loads((site / "search" / "search_index.json").read_text())
    assert {"tutorial.html", "reference.html"} <= {each["location"] for each in index["docs"]}


def test_help_of_a_key_is_that_key_alone(command) -> None:
    assert command("--help", "seed").out == (
        "seed=0 (whole number)\n  same seed, same run\n  allowed: a whole number from 0 to 4,294,967,295\n"
    )
    assert command("--help", "budget").out.count("budget.") == 4
    ended = command("--help", "sead")
    assert (ended.status, ended.out) == (1, "")
    assert "did you mean seed?" in ended.err
