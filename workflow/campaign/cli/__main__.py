"""The program `campaign`. A lease that Snakemake starts is measured by a fork of a process that has everything loaded."""

from __future__ import annotations

import sys


def main() -> None:
    if sys.argv[1:2] == ["measure"]:
        from campaign.cli.lease_client import measured_elsewhere

        if (code := measured_elsewhere(sys.argv[1:])) is not None:
            sys.exit(code)
    from campaign.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
