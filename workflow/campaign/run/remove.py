"""Deletion of a campaign's results (`campaign remove`)."""

from __future__ import annotations

import shutil
from typing import Any, NoReturn

from campaign.common.errors import ConfigError, convert_os_error
from campaign.common.files import is_locked
from campaign.common.paths import Results
from campaign.common.wording import pluralize
from campaign.lease.campaign_leases import find_lease_name
from campaign.lease.journal import Journal, list_journaled_leases
from campaign.spec.record import RecordStore, read_campaigns_as_used


def describe_contents(results: Results) -> str:
    """Describe the size of a results directory, e.g. '24 records in 280 files, 3.1 MiB'.

    Raises ConfigError if the directory holds no results of a campaign.
    """
    files = [path for path in results.directory.rglob("*") if path.is_file()]
    if not results.plan_file.exists() and not any(read_campaigns_as_used(results.directory)):
        raise ConfigError(
            f"{results.directory}: this directory has neither records nor a plan, so nothing was deleted; name the results "
            "directory of a campaign, or its campaign file"
        )
    records = sum(1 for _ in RecordStore(results.directory).list_keys())
    size = sum(path.lstat().st_size for path in files)
    return f"{pluralize(records, 'record')} in {pluralize(len(files), 'file')}, {size / 2**20:.3g} MiB"


def remove_results(results: Results) -> None:
    """Delete a results directory.

    Raises ConfigError if the campaign is being measured, or if one of its leases is still held.
    """
    if held_locks := [
        lock
        for name in ("measure", "driver")
        for lock in results.directory.glob(f"work/*/{name}.lock")
        if is_locked(lock)
    ]:
        raise ConfigError(
            f"{results.directory}: lease {held_locks[0].parent.name} is being measured; end that command, or wait until "
            "'campaign status' shows no running lease"
        )
    for journals in sorted((results.root / ".systems").glob("*/leases")):
        for name in list_journaled_leases(journals):
            if find_lease_name(results, name) is not None and Journal(journals, name).state not in (None, "RELEASED"):
                raise ConfigError(
                    f"{results.directory}: lease {name} still holds devices of {journals.parent.name}; release it with "
                    "'campaign release', or with 'campaign release --orphans' if its owner has died"
                )
    try:
        shutil.rmtree(results.directory, onerror=_raise_with_path)
    except OSError as error:
        raise convert_os_error(error, results.directory) from error


def _raise_with_path(function: object, path: str, info: tuple[type[BaseException], BaseException, Any]) -> NoReturn:
    """Raise an error of `rmtree` with the full path of its file. The original error has only the file name."""
    error = info[1]
    raise OSError(error.errno, error.strerror, path) if isinstance(error, OSError) else error
