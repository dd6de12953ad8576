"""A stand-in for the client of remote devices, as a launch prefix: `lend DEVICES PART -- COMMAND`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LEND = ("lend", "{devices}", "{fraction}", "--")
SCRIPT = """\
#!/bin/sh
export LENT_DEVICES=$1 LENT_PART=$2
case $2 in 1 | 0.[0-9]*) ;; *) echo "lend: $2 is no part of a device" >&2; exit 64 ;; esac
printf '{"run": "%s", "rank": "%s", "asked": "%s %s"}\\n' "$CAMPAIGN_RUN" "$RANK" "$1" "$2" >> "{log}"
shift 3
exec "$@"
"""


def install(directory: Path) -> Path:
    """Put `lend` into `directory`/bin, which is to be on the PATH; gives its log."""
    log, program = directory / "lend.log", directory / "bin" / "lend"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(SCRIPT.replace("{log}", str(log)))
    program.chmod(0o755)
    return log


def asked(log: Path) -> list[dict[str, Any]]:
    """What was asked of it: `run`, the mark of a run; `rank`, empty for one program; `asked`, devices and part."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
