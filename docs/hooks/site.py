"""What MkDocs is told beside mkdocs.yml: pages and pictures that are made from the sources when the site is built."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.structure.files import File, Files

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MEASURED = "measured.md"


def _beside(name: str) -> ModuleType:
    """A module of this folder, which is no package and on no path."""
    spec = importlib.util.spec_from_file_location(f"docs_hooks_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def on_files(files: Files, config: Any) -> Files:
    """Take in the page beside the measured tables, and the picture of the layers."""
    layers = _beside("layers")
    table = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "layers.svg", content=layers.drawn(layers.read_layers(table))))
    page = (ROOT / "knowledge" / "measured" / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, MEASURED, content=page))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put in what is made (keys and names, the picture), and the site's address of the page beside the tables."""
    if page.file.src_uri == "reference.md":
        return _beside("reference").filled(markdown)
    if page.file.src_uri == "architecture.md":
        return markdown.replace("<!-- picture -->", _beside("layers").PICTURE)
    return markdown.replace("../knowledge/measured/README.md", MEASURED)
