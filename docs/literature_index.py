"""Write the table of reports/README.md: figures and tables of published studies, and the figures here that show the same.

`python -m docs.literature_index [--check]`. Rows come from `COUNTERPARTS` of each figure:
'study: figure there' -> what it shows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from campaign.common.paths import REPORTS
from campaign.report.figure import load_all_figures

STUDIES = {
    "Falcon": 'El Maghraoui et al., "Performance Analysis of Deep Learning Workloads on a Composable System" (arXiv 2103.10911)',
    "FASTER": 'He et al., "Performance of Distributed Deep Learning Workloads on a Composable Cyberinfrastructure" '
    "(PEARC '23, doi 10.1145/3569951.3593601)",
    "Dell": 'Dell EMC and Bitfusion, "Deep learning with local and remote attached GPUs" (blog article)',
}
BEGIN, END = "<!-- Written by `make docs` from COUNTERPARTS in scripts/figures/; edit those. -->", "<!-- End -->"


def table() -> str:
    """The generated part of reports/README.md."""
    return "\n".join([BEGIN, "", *_lines(), END])


def _lines() -> Iterator[str]:
    figures = load_all_figures().values()
    for study, cited in STUDIES.items():
        yield from (f"### {study}: {cited}", "", "| There | What it shows | Here |", "|---|---|---|")
        for figure in figures:
            for there, shows in figure.counterparts.items():
                name, _, place = there.partition(": ")
                if name not in STUDIES:
                    raise ValueError(
                        f"scripts/figures/{figure.name}.py: COUNTERPARTS: no study '{name}'; there are {', '.join(STUDIES)}"
                    )
                if name == study:
                    yield f"| {place} | {shows} | `{figure.name}` |"
        yield ""
    alone = [figure for figure in figures if not figure.counterparts]
    yield from ("### Figures that none of these studies has", "", "| Here | What it shows |", "|---|---|")
    yield from (f"| `{figure.name}` | {figure.section.partition('?')[0]}? |" for figure in alone)
    yield ""


def written() -> str:
    """reports/README.md as it should be."""
    text = (REPORTS / "README.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    return before + table() + rest.partition(END)[2]


if __name__ == "__main__":
    path = REPORTS / "README.md"
    if "--check" in sys.argv and path.read_text(encoding="utf-8") != written():
        sys.exit(f"{path}: not what the figures declare; run 'make docs'")
    path.write_text(written(), encoding="utf-8")
