"""Composable Campaign: characterization campaigns on composable infrastructure.

`load` is the only public function for other Python programs. Everything else may change between versions.
"""

from __future__ import annotations

TYPE_CHECKING = False  # Type checkers know this name; importing `typing` would take as long as starting Python.
if TYPE_CHECKING:
    import os

    from campaign.report.loaded_results import LoadedResults

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def load(
    *sources: str | os.PathLike[str], results: str | os.PathLike[str] = "results", where: str | None = None
) -> LoadedResults:
    """Load the results of one or several campaigns, for a notebook or another program.

    Nothing is written. Tables that the campaign wrote are used as they are; otherwise they are built from the records.

    Args:
        sources: results directories of campaigns, campaign files (`.yaml`) or archives (`.zip`).
        results: directory of all results, where those of a campaign file are.
        where: filter of the runs, such as `"precision == 'bf16' and hosts == 1"`.

    Raises:
        campaign.common.errors.CampaignError: if a source does not exist, has no measurements, or is damaged.
    """
    # Imported late: pandas takes longer to import than most commands run.
    from campaign.report.loaded_results import load_results

    return load_results(sources, results, where)
