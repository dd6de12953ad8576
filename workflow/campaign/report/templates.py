"""HTML from the templates in reports/: what they are given is escaped, and a name that they are not given is an error."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from campaign.errors import RecordError
from campaign.paths import REPORTS

STYLE = REPORTS / "report.css"


@cache
def templates(directory: Path = REPORTS) -> Environment:
    """The templates of a directory."""
    return Environment(
        loader=FileSystemLoader(directory),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def filled(template: str, context: Mapping[str, Any]) -> str:
    """A page that carries the report's style and asks for no other file."""
    css = Markup(STYLE.read_text(encoding="utf-8"))
    return templates().get_template(template).render(**context, css=css)


def inline(svg: str) -> Markup:
    """A picture as part of a page: without the XML declaration, which only a file of its own may have.

    RecordError for what is no picture.
    """
    begin = svg.find("<svg")
    if begin < 0:
        raise RecordError("a figure is no picture (no <svg> in it); delete figures/ and recommendation/ and run again")
    return Markup(svg[begin:])
