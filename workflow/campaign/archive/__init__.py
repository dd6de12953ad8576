"""A campaign in one file: everything that its report needs, with checksums, and nothing of the machine it was made on.

A zip file and a Workflow Run RO-Crate (schema `archive/3`): `archive.json` (schema, SHA-256 of every member),
`ro-crate-metadata.json`, `README.md`, `campaign.json` and `config/` (the campaign as used, with its programs), the workflow, and
the parts of the results directory that `layout.PARTS` names. Every byte is checked when it is read.
"""

from __future__ import annotations

from campaign.archive.layout import PARTS, SCHEMA
from campaign.archive.open_results import as_planned, report_from, report_from_archive, writable
from campaign.archive.programs import LIMIT_MIB
from campaign.archive.read import Opened, check, extract, opened
from campaign.archive.write import Wishes, Written, write_archive

__all__ = [
    "LIMIT_MIB",
    "PARTS",
    "SCHEMA",
    "Opened",
    "Wishes",
    "Written",
    "as_planned",
    "check",
    "extract",
    "opened",
    "report_from",
    "report_from_archive",
    "writable",
    "write_archive",
]
