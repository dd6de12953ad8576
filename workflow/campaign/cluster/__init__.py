"""Emulated hosts on one Linux machine, and a whole Slurm on them: for tests, demonstrations and learning."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from campaign.cluster.spec import Cluster

DESCRIPTION = "cluster.json"
"""File in a cluster's directory that says what it is."""


def find_from_environment() -> Cluster | None:
    """The emulated cluster that SLURM_CONF means, in a job or outside of it; None for any other Slurm.

    Cheap where there is none: the launcher asks before every campaign.
    """
    conf = os.environ.get("SLURM_CONF")
    description = Path(conf).parent.parent / DESCRIPTION if conf else None
    if description is None or not description.is_file():
        return None
    from campaign.cluster.spec import Cluster

    return Cluster.model_validate_json(description.read_text())
