"""The two kinds of editing, so that nothing stays in edit mode: of a group's pool, and of a machine.

An edit that fails is cancelled, which reverts it. Only one machine of a Matrix is edited at a time, and a group by one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from campaign.fabrics.dialects.liqid.api import Api, Place, Refused
from campaign.fabrics.dialects.liqid.parse import Raw, member
from campaign.fabrics.errors import OutcomeUnknown


def pool_body(where: Place, group: Raw) -> dict[str, Any]:
    """What is sent to begin, finish and cancel the editing of a group's pool."""
    return {"coordinates": where.coordinates, "fabr_id": where.fabr_id, "grp_id": member(group, "grp_id")}


@contextmanager
def pool_edit(api: Api, where: Place, group: Raw, *, takes_over: bool) -> Iterator[None]:
    """Edit a group's pool; what is asked within happens when the block ends well.

    takes_over: an edit that is there already is one that this lease left behind when it died, and is cancelled first.
    Raises Refused when somebody else edits it.
    """
    body = pool_body(where, group)
    _begin(api, "pool/edit", "pool/cancel", body, takes_over)
    try:
        yield
        api.change("POST", "pool/done", body)
    except BaseException:
        api.quietly("POST", "pool/cancel", body)
        raise


@contextmanager
def machine_edit(api: Api, machine: Raw) -> Iterator[None]:
    """Edit a machine of ours; what is related within is connected when the block ends well.

    Raises Refused when another machine is edited, OutcomeUnknown for whatever goes wrong while it is connected.
    """
    _begin(api, "fabric/edit", "fabric/edit/cancel", machine, takes_over=member(machine, "mach_id"))
    try:
        yield
    except BaseException:
        api.quietly("POST", "fabric/edit/cancel", machine)
        raise
    try:
        api.change("POST", "fabric/reprogram", machine)
    except Refused as error:
        api.quietly("POST", "fabric/edit/cancel", machine)
        raise OutcomeUnknown(f"{error}; which devices are connected now is unknown") from error


def _begin(api: Api, begin: str, cancel: str, body: Any, takes_over: Any) -> None:
    """takes_over: True, or the number of the machine whose own edit may be cancelled."""
    try:
        try:
            api.change("POST", begin, body)
        except Refused as error:
            if not error.busy or not (takes_over is True or (takes_over and error.names(takes_over))):
                raise
            api.quietly("POST", cancel, body)
            api.change("POST", begin, body)
    except OutcomeUnknown:
        api.quietly("POST", cancel, body)
        raise
