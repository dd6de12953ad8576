"""Measuring alone on a machine, also against campaigns of other users."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from campaign import files
from campaign.paths import machine_lock


@contextmanager
def alone_on_the_machine(tell: Callable[[str], None]) -> Iterator[None]:
    """Waits for whoever measures on this machine; tell: is called before waiting."""
    with (
        files.lock(machine_lock(), lambda who: tell(f"waiting for {who}, which measures on this machine")),
        files.directory_lock(
            Path(tempfile.gettempdir()), lambda: tell("waiting for another user, who measures on this machine")
        ),
    ):
        yield
