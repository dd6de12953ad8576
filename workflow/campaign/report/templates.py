"""HTML from the templates in reports/. All values are escaped, and an undefined name is an error."""

from __future__ import annotations

import gzip
from base64 import b64encode
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from campaign.common.errors import RecordError
from campaign.common.paths import REPORTS

STYLE, SCRIPT = REPORTS / "report.css", REPORTS / "report.js"
# A longer file is not carried by the page; it stands beside the figures. No numbers are packed to a twentieth.
MAX_EMBEDDED_BYTES, _MAX_COMPRESSION = 100_000, 20


@cache
def load_templates(directory: Path = REPORTS) -> Environment:
    """Return the Jinja environment of a directory of templates."""
    return Environment(
        loader=FileSystemLoader(directory),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render_template(template: str, context: Mapping[str, Any]) -> str:
    """Render a page that includes the report's style and script and needs no other file."""
    css, script = (Markup(file.read_text(encoding="utf-8")) for file in (STYLE, SCRIPT))
    return load_templates().get_template(template).render(**context, css=css, script=script)


def inline_svg(svg: str) -> Markup:
    """Return a picture for inclusion in a page, without the XML declaration, which only a separate file may have.

    Raises RecordError if the text is no SVG picture.
    """
    begin = svg.find("<svg")
    if begin < 0:
        raise RecordError("a figure is no picture (no <svg> in it); delete figures/ and recommendation/ and run again")
    return Markup(svg[begin:])


def encode_downloads(picture: Path) -> dict[str, str]:
    """Encode the files next to a picture for links of the page, as base64: `csv` (gzip) and `pdf`.

    The text is '' for a file that is too long, missing, or no regular file.
    """
    encoded = {}
    for kind, pack in (("csv", partial(gzip.compress, mtime=0)), ("pdf", bytes)):
        file = picture.with_suffix(f".{kind}")
        is_packable = file.is_file() and file.stat().st_size <= _MAX_COMPRESSION * MAX_EMBEDDED_BYTES
        content = pack(file.read_bytes()) if is_packable else b""
        encoded[kind] = b64encode(content).decode() if len(content) <= MAX_EMBEDDED_BYTES else ""
    return encoded
