"""The files of `launch/`, filled in for a job: what a shell or a container builder reads. Their marks are `<% name %>`,
since shells have braces of their own."""

from __future__ import annotations

import shlex
from functools import cache
from typing import TYPE_CHECKING

from asap_ray.settings import data_dir

if TYPE_CHECKING:
    import jinja2


def filled(file: str, /, **values: object) -> str:
    """A file of `launch/` with its marks filled in; `| sh` quotes a value as a word of a shell."""
    return _environment().get_template(file).render(values)


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(data_dir("launch")),
        variable_start_string="<%",
        variable_end_string="%>",
        block_start_string="<!",
        block_end_string="!>",
        comment_start_string="<#",
        comment_end_string="#>",
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 (no HTML; what comes from a user is quoted for a shell)
    )
    made.filters["sh"] = lambda value: shlex.quote(str(value))
    return made
