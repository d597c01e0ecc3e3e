"""The table of layers in docs/architecture.md, read for the site's picture of it and for the test that holds it."""

from __future__ import annotations

import re
from typing import NamedTuple

import networkx as nx

MARK = "<!-- layers -->"
PICTURE = """\
![Layers and their imports: an arrow points at what a layer imports](layers.svg)

An arrow that follows from others is left out of the picture."""
"""What the site has in the place of `<!-- picture -->`."""
WIDTH, HEIGHT, GAP = 104, 32, 48
"""Of a box and of the space between rows, in pixels."""


class Layer(NamedTuple):
    """One row: its modules (`physics` stands for all below it), and the layers that it imports beside itself."""

    name: str
    modules: tuple[str, ...]
    imports: tuple[str, ...]


def read_layers(page: str) -> tuple[Layer, ...]:
    """Rows of the table that follows `MARK`, in order."""
    table = page.split(MARK)[1].strip().split("\n\n")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]
    return tuple(
        Layer(name, tuple(re.findall(r"`([\w.]+)`", modules)), tuple(filter(None, imports.split(", "))))
        for name, modules, _, imports in rows
    )


def drawn(layers: tuple[Layer, ...]) -> str:
    """The picture as SVG: each layer above all that it imports, and only arrows that follow from no others."""
    graph = nx.DiGraph([(layer.name, other) for layer in layers for other in layer.imports])
    graph.add_nodes_from(layer.name for layer in layers)
    graph = nx.transitive_reduction(graph)
    rows = [sorted(row) for row in nx.topological_generations(graph)]
    across, step = max(map(len, rows)) * (WIDTH + GAP), HEIGHT + GAP
    at: dict[str, tuple[float, float]] = {}
    for depth, row in enumerate(rows):
        above = {name: [at[each][0] for each in graph.predecessors(name)] for name in row}
        row.sort(key=lambda name: sum(above[name]) / max(len(above[name]), 1))  # below what points at it
        for i, name in enumerate(row):
            at[name] = across * (i + 0.5) / len(row), 10 + HEIGHT / 2 + step * depth
    arrows = [_arrow(at[a], at[b]) for a, b in graph.edges]
    boxes = [_box(name, *where) for name, where in at.items()]
    wide, high = f"{across:.0f}", f"{step * len(rows):.0f}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
            'font-family="sans-serif" font-size="14" text-anchor="middle">',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path d="M0 0 8 4 0 8z" fill="#5c6bc0"/></marker></defs>',
            *arrows,
            *boxes,
            "</svg>\n",
        ]
    )


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x, y), (to_x, to_y) = start, end
    y, to_y = y + HEIGHT / 2, to_y - HEIGHT / 2
    curve = f"M{x:.0f} {y:.0f}C{x:.0f} {y + GAP:.0f} {to_x:.0f} {to_y - GAP:.0f} {to_x:.0f} {to_y:.0f}"
    return f'<path d="{curve}" fill="none" stroke="#5c6bc0" stroke-width="1.5" marker-end="url(#tip)"/>'


def _box(name: str, x: float, y: float) -> str:
    rect = f'x="{x - WIDTH / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="5"'
    text = f'<text x="{x:.0f}" y="{y + 5:.0f}" fill="#1a237e">{name}</text>'
    return f'<rect {rect} fill="#e8eaf6" stroke="#5c6bc0"/>{text}'
