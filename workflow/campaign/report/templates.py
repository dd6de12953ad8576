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
# Longer files are not embedded in the page; they are in the directory of figures. CSV is never compressed to less than a twentieth.
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
    """Strip a picture's XML declaration, which only a separate file may have, to inline it in a page.

    Raises RecordError if the text has no SVG element.
    """
    begin = svg.find("<svg")
    if begin < 0:
        raise RecordError("A figure has no <svg> element; delete figures/ and recommendation/ and run again")
    return Markup(svg[begin:])


def encode_downloads(picture: Path) -> dict[str, str]:
    """Encode the CSV (gzip) and PDF files next to a picture as base64, for download links of the page.

    The text is empty if the file is too long, missing, or not a regular file.
    """
    encoded_files = {}
    for kind, pack in (("csv", partial(gzip.compress, mtime=0)), ("pdf", bytes)):
        file = picture.with_suffix(f".{kind}")
        is_packable = file.is_file() and file.stat().st_size <= _MAX_COMPRESSION * MAX_EMBEDDED_BYTES
        content = pack(file.read_bytes()) if is_packable else b""
        encoded_files[kind] = b64encode(content).decode() if len(content) <= MAX_EMBEDDED_BYTES else ""
    return encoded_files
