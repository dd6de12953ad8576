"""Rule `measure`: one lease, from composing to releasing."""

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path

from campaign.errors import CampaignError, unwritable
from campaign.files import write_json
from campaign.processes.signals import Interrupted
from campaign.run.measure import Measurement, measure
from campaign.run.wait_for_driver import Left
from campaign.slurm.options import person


def main(what: Measurement, manifest: Path, log: Path) -> None:
    """Measure, telling the person and the log; the manifest is written whole or not at all."""

    def say(message: str) -> None:
        # A closed terminal or a full disk must not end what is measured: words are not worth it.
        with suppress(OSError):
            print(message, flush=True)
        with suppress(OSError), log.open("a") as file:
            file.write(message + "\n")

    try:
        document = measure(what, say)
        write(document, manifest)
    except Left:
        sys.exit(f"{what.lease}: its job was left in Slurm; the same command again picks it up")
    except Interrupted:
        sys.exit(f"{what.lease}: stopped and released; the same command again goes on with what is missing")
    except CampaignError as error:
        say(f"error: {error}")
        sys.exit(1)


def write(document: dict, manifest: Path) -> None:
    """Replace the manifest."""
    try:
        write_json(manifest, document, indent=1)
    except OSError as error:
        raise unwritable(error, manifest) from error


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--campaign", "--results"):
        parser.add_argument(name, type=Path, required=True)
    for name in ("--where", "--budget", "--forecast", "--launcher", "--slurm", "lease", "runs"):
        parser.add_argument(name)
    parser.add_argument("--run-implied", action="store_true")
    for name in ("manifest", "log"):
        parser.add_argument(name, type=Path)
    asked = parser.parse_args()
    main(
        Measurement(
            campaign_path=asked.campaign,
            lease=asked.lease,
            results_root=asked.results,
            run_set=asked.runs.partition(".")[0],
            where=asked.where,
            launcher=asked.launcher or None,
            slurm=person(json.loads(asked.slurm or "{}")),
            run_implied=asked.run_implied,
            budget=asked.budget,
            forecast=json.loads(asked.forecast or "null"),
        ),
        asked.manifest,
        asked.log,
    )
