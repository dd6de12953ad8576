"""The files that say which links were measured on which use of a lease: `links/<use>.<when>.json` in the results directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from campaign.documents.record import Store
from campaign.errors import RecordError
from campaign.observe.links.document import with_models

SCHEMA = "links-of-use/1"
When = Literal["before", "after"]


def links_of_uses(results: Path, store: Store) -> list[dict[str, Any]]:
    """What was measured, in the order of the files: lease_id, lease, when, and the document of each."""
    found = []
    for path in sorted((results / "links").glob("*.json")):
        try:
            said = json.loads(path.read_bytes())
            found.append({**said, "document": with_models(store.shared_document(said["document"]))})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecordError(
                f"{path}: cannot be read ({error}); restore it from an archive, or move it away"
            ) from error
    return found
