"""What `campaign check SYSTEM --devices` does and shows."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import click

from campaign.cli.terminal import TextTable, following, say, show, show_json
from campaign.config.system_file import SystemFile
from campaign.files import write_json
from campaign.observe.devices.document import DevicesDocument, DeviceVerdict
from campaign.observe.devices.stage import kept_of_site
from campaign.observe.devices.verdicts import in_words
from campaign.processes.signals import Interrupted
from campaign.run import acceptance
from campaign.run.driver_supervisor import LeftRunning
from campaign.wording import plural

_WORST_FIRST = ("failed", "low", "ok", "skipped", "rate")
_COLOURS = {"failed": "red", "low": "yellow"}


def check_devices(
    system: SystemFile, results: Path, hosts: Sequence[str], *, short: bool, keep: bool, as_json: bool
) -> None:
    """Check, keep, print; exit with 1 where a device has failed."""

    def tell(message: str) -> None:
        click.echo(message, err=True)

    log = acceptance.log_of(system, results)
    tell(f"Checking devices, which takes up to {'half a minute' if short else '5 minutes'} (log: {log})")
    try:
        with following("devices", log):
            document, missed = acceptance.measure(system, results, hosts, tell, short=short)
    except Interrupted:
        sys.exit("stopped, and what was composed is released")
    except LeftRunning:
        sys.exit("its job was left in Slurm; 'campaign fabric reconcile' releases what it holds once it has ended")
    failed = document.failed
    for what in ("last", *(("reference",) if keep and not failed else ())):
        write_json(kept_of_site(results, system.name, what), document.model_dump(mode="json"), indent=1)
    if as_json:
        show_json({**document.model_dump(mode="json"), "not reached": missed})
    else:
        _show(document, missed)
    if keep:
        tell("not kept as the reference, because a device failed" if failed else "kept as the site's reference")
    sys.exit(1 if failed else 0)


def _show(document: DevicesDocument, missed: Sequence[str]) -> None:
    """A table of verdicts by device, one of numbers by quantity, and a line for each verdict that a person has to know."""
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    numbers: defaultdict[tuple[str, str], list[DeviceVerdict]] = defaultdict(list)
    for verdict in document.verdicts:
        found[verdict.device, verdict.step].append(verdict.verdict)
        if verdict.value is not None:
            numbers[verdict.quantity, verdict.source].append(verdict)
    devices, steps = (list(dict.fromkeys(key[place] for key in found)) for place in (0, 1))
    rows = [(name, *(min(found[name, step], key=_WORST_FIRST.index, default="") for step in steps)) for name in devices]
    show(TextTable(f"Devices of {document.system}", ["", *steps], rows))
    columns = ["median", "lowest", "highest", "expected"]
    table = []
    for (quantity, source), verdicts in numbers.items():
        values = [each.value for each in verdicts if each.value is not None]
        expected = [each.expected for each in verdicts if each.expected is not None]
        spread = (f"{value:.4g}" for value in (median(values), min(values), max(values)))
        table.append((quantity, *spread, f"{median(expected):.4g}" if expected else "", source))
    show(TextTable("Numbers", ["quantity", *columns, "by"], table, columns))
    for verdict in document.verdicts:
        if colour := _COLOURS.get(verdict.verdict):
            say(f"{verdict.verdict:6}  {verdict.device}: {verdict.step}: {in_words(verdict)}", colour)
    for words in missed:
        say(f"not reached: {words}")
    faults = plural(len(document.failed), "fault")
    say(f"{plural(len(document.devices), 'device')}, {document.form} form, {document.took_s:.0f} s: {faults}")
