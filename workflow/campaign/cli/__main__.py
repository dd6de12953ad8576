"""The program `campaign`."""

from __future__ import annotations

from campaign.cli.main import main

if __name__ == "__main__":
    main()
