"""A stand-in for a GPU virtualisation client: it is as strict about its options as the real one, and then is the program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# In the environment of what it starts: BITFUSION_DEVICES. Its log is what it was asked for, a line a start.
SCRIPT = """\
#!/bin/sh
asked="$*"
test "$1" = run || { echo "bitfusion: no command $1" >&2; exit 64; }
shift
part=1
while test "$1" != --; do
  case $1 in
    -n) BITFUSION_DEVICES=$2 ;;
    -p) part=$2 ;;
    *) echo "bitfusion: unknown option $1" >&2; exit 64 ;;
  esac
  shift 2 || exit 64
done
shift
test "$BITFUSION_DEVICES" -ge 1 || exit 64
case $part in 1 | 0.[0-9]*) ;; *) echo "bitfusion: -p takes a part of a GPU" >&2; exit 64 ;; esac
export BITFUSION_DEVICES BITFUSION_PART=$part
printf '{"run": "%s", "rank": "%s", "asked": "%s"}\\n' "$CAMPAIGN_RUN" "$RANK" "${asked%% -- *}" >> "{log}"
exec "$@"
"""


def install(directory: Path) -> Path:
    """Put `bitfusion` into `directory`/bin, which is to be on the PATH; gives its log."""
    log, program = directory / "bitfusion.log", directory / "bin" / "bitfusion"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(SCRIPT.replace("{log}", str(log)))
    program.chmod(0o755)
    return log


def asked(log: Path) -> list[dict[str, Any]]:
    """What was asked of it: `run`, the mark of a run; `rank`, empty for one program; `asked`, its own arguments."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
