"""Pages of the documentation as data: their fences, commands and links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
PAGES = {path.name: path for path in sorted((ROOT / "docs").glob("*.md"))}
EVERY = {"README.md": ROOT / "README.md", **PAGES}
MARK = re.compile(r"<!-- (?P<word>run|composed|file)(: (?P<rest>.+?))? -->")


@dataclass(frozen=True)
class Fence:
    """A fenced block: its language, its text, the mark before it, and the line where it begins."""

    language: str
    text: str
    mark: str
    rest: str
    line: int

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command of asap_ray in it, as a shell reads them."""
        lines = _lines(self.text) if self.language == "bash" else ()
        return [words for line in lines if (words := _own(line))]


def fences(page: Path) -> list[Fence]:
    """All blocks of code of a page in order; an indented one has no language."""
    tokens = MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8"))
    found, mark = [], None
    for token in tokens:
        if token.type == "html_block":
            mark = MARK.search(token.content)
        elif token.type in ("fence", "code_block"):
            assert token.map
            word, rest = (mark["word"], mark["rest"] or "") if mark else ("", "")
            found.append(Fence(token.info.strip(), token.content, word, rest, token.map[0] + 1))
            mark = None
        elif token.type not in ("inline", "paragraph_open", "paragraph_close"):
            mark = None
    return found


def _lines(text: str) -> Iterator[str]:
    yield from re.sub(r"\s*\\\n\s*", " ", text).splitlines()


def _own(line: str) -> list[str]:
    """Words behind `asap-ray` or `python -m asap_ray`, up to a pipe; none where the line starts something else."""
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if words[:1] == ["asap-ray"]:
        words = words[1:]
    elif len(words) > 2 and words[0].endswith("python") and words[1:3] == ["-m", "asap_ray"]:
        words = words[3:]
    else:
        return []
    return words[: words.index("|")] if "|" in words else words


def links(page: Path) -> list[str]:
    """Where the links and pictures of a page lead."""
    found = []
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
        for child in token.children or ():
            found += [str(child.attrs[name]) for name in ("href", "src") if name in child.attrs]
    return found


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and the site make them."""
    tokens = MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8"))
    heads = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads}


def plain(line: str) -> str:
    """A line without what differs between two runs of one command: how long it took, and where it wrote."""
    return re.sub(r"\(\d[\d.,]* m?s\)", "(time)", re.sub(r"(/[\w.+-]+|…)+(?=/(runs|mine)/)", "…", line.rstrip()))


def missing(shown: str, printed: str) -> list[str]:
    """Lines that a page shows and the command does not print in that order; one that ends in … may go on."""
    rest = iter([plain(line) for line in printed.splitlines()])
    absent = []
    for line in filter(None, map(plain, shown.splitlines())):
        stem = line.removesuffix("…").rstrip() if line.endswith("…") else None
        if not any(each == line or (stem is not None and each.startswith(stem)) for each in rest):
            absent.append(line)
            rest = iter([])
    return absent
