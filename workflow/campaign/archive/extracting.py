"""An archive as a directory again: a results directory with the campaign's files in it, from which the campaign can go on."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from campaign.archive.reading import unpack
from campaign.errors import ArchiveError


def extract(path: Path, root: Path) -> Path:
    """Unpack an archive to `<root>/<campaign>`, whole or not at all; gives that directory.

    ArchiveError as `opened`, and when the directory is there already.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".campaign-archive-", dir=root))
    except OSError as error:
        raise ArchiveError(f"{root}: cannot be written ({error.strerror}); give another --into") from error
    try:
        archive = unpack(path, scratch)
        target = root / archive.campaign.name
        if target.exists():
            raise ArchiveError(f"{target}: is there already, and nothing of it is replaced; give another --into")
        scratch.chmod(0o755)
        scratch.rename(target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return target
