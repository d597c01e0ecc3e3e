"""The answer on a terminal: tables in colour where there is one, plain lines elsewhere, one JSON object for programs.

Plain output has one fact a line and is not wrapped, so that it can be searched; rich output fits the terminal's width.
Model names and paths are data: no markup in them is read, and no control character of theirs reaches the terminal.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TextIO

from asap_ray.errors import ConfigError, printable
from asap_ray.report.answer import Answer
from asap_ray.report.compiled import compiled_blocks
from asap_ray.report.outline import Block, Grid, closing, heading, outline
from asap_ray.report.summary import summary_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from asap_ray.hardware import Slice
    from asap_ray.workload import Workload

OUTPUTS = ("rich", "plain", "json")


def takes_escapes(stream: TextIO) -> bool:
    """Whether colours and a moving cursor are wanted: on a terminal, unless TERM=dumb or a NO_COLOR is set."""
    return stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")


def show(answer: Answer, output: str, stream: TextIO, *, announced: bool = False, priced: bool = False) -> None:
    """Print the answer.

    Args:
        answer: what was found.
        output: `rich` (plain where the stream is no terminal), `plain`, or `json` (`summary.json` on one line).
        stream: where to, such as `sys.stdout`.
        announced: whether `announce` has printed the heading already.
        priced: whether `show_priced` has printed what the roofline said already.

    Raises:
        ConfigError: `output` is none of the three.
    """
    if output not in OUTPUTS:
        raise ConfigError("output", output, f"allowed: {', '.join(OUTPUTS)}", OUTPUTS)
    if output == "json":
        stream.write(summary_line(answer) + "\n")
        return
    if not announced:
        announce(answer.model, answer.workload, tuple(each.slice for each in answer.slices), output, stream)
    compiles = any(one.searched for one in answer.slices)
    if not priced:
        print_blocks(outline(answer, compiles=compiles), output, stream)
    print_blocks([*compiled_blocks(answer), closing(answer)], output, stream)


def show_priced(answer: Answer, output: str, stream: TextIO) -> None:
    """Print what the roofline said, before a compiler has said more."""
    print_blocks(outline(answer, compiles=True), output, stream)


def announce(model: str, workload: Workload, slices: tuple[Slice, ...], output: str, stream: TextIO) -> None:
    """Print what is asked, before the answer is known. With `json`, pass stderr as the stream."""
    print_blocks([heading(model, workload, slices)], output, stream)


def print_blocks(blocks: Iterable[Block], output: str, stream: TextIO) -> None:
    """Print blocks in colour (`rich`, where the stream takes it) or as plain lines."""
    if output == "rich" and takes_escapes(stream):
        _print_rich(blocks, stream)
    else:
        encoding = getattr(stream, "encoding", None) or "utf-8"
        for block in blocks:
            for line in _plain_lines(block):
                stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
    stream.flush()


def _plain_lines(block: Block) -> Iterable[str]:
    if block.title:
        yield printable(f"{block.title}:")
    if block.grid is not None:
        header = block.grid.header
        rows = [tuple(map(printable, row)) for row in (header, *block.grid.rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        align = ["<" if title in block.grid.words else ">" for title in header]
        for row in rows:
            cells = [f"{text:{side}{width}}" for text, side, width in zip(row, align, widths, strict=True)]
            yield f"  {'  '.join(cells)}".rstrip()
    width = max((len(printable(label)) for label, _ in block.facts), default=0)
    for label, text in block.facts:
        yield f"  {printable(label).ljust(width)}  {printable(text)}".rstrip()


def _print_rich(blocks: Iterable[Block], stream: TextIO) -> None:
    from rich.console import Console

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    for each in rich_blocks(blocks):
        console.print(each)


def rich_blocks(blocks: Iterable[Block]) -> Iterator[RenderableType]:
    """Blocks in colour, each with an empty line after it."""
    from rich.text import Text

    for block in blocks:
        if block.title:
            yield Text(printable(block.title), style="bold cyan")
        if block.grid is not None:
            yield _rich_grid(block.grid)
        if block.facts:
            yield _rich_facts(block)
        yield Text()


def _rich_grid(grid: Grid) -> RenderableType:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for title in grid.header:
        if title in grid.words:
            table.add_column(Text(title), overflow="fold")
        else:
            table.add_column(Text(title), justify="right", no_wrap=True)
    for row in grid.rows:
        table.add_row(*(Text(printable(text)) for text in row))
    return Padding(table, (0, 0, 0, 2))


def _rich_facts(block: Block) -> RenderableType:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table: Table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True, overflow="ellipsis", max_width=24)
    table.add_column(overflow="fold", ratio=1)
    for place, (label, text) in enumerate(block.facts):
        style = "bold green" if block.strong and place == 0 else ""
        table.add_row(Text(printable(label)), Text(printable(text), style=style))
    return Padding(table, (0, 0, 0, 2))
