"""Write the generated reference, docs/reference/ and workflow/schemas/: `python -m campaign.config.documentation [--check]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from campaign.config.documentation.pages import COMMAND, documents


def outdated() -> list[Path]:
    """Generated files that are not as they would be made now."""
    return [
        path
        for path, content in documents().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != content
    ]


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or with `--check` say which would change; gives the exit code."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file would change")
    if parser.parse_args(arguments).check:
        old = outdated()
        for path in old:
            print(f"{path} is not up to date; run: {COMMAND}", file=sys.stderr)
        return 1 if old else 0
    for path, content in documents().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
