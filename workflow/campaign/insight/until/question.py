"""What a campaign can be asked until it is answered: the best configuration, a comparison, or a frontier. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from campaign.config.resolve import Campaign
from campaign.documents.cell import Cell
from campaign.documents.expression import Expression, parse
from campaign.errors import ConfigError, nearest
from campaign.plan.matrix import expand
from campaign.plan.selection import axis_names

Form = Literal["best", "comparison", "frontier"]

FORMS = (
    "the best configuration is known within 5 %",
    "CONFIGURATION against CONFIGURATION is decided within 3 %",
    "the frontier of throughput and device-hours is known within 5 %",
)
"""One example of each form; all may end in `for EXPRESSION`, such as "for workload == 'bert' and batch == 8"."""

_QUESTION = re.compile(
    r"(?:(?P<best>the best configuration is known)|(?P<frontier>the frontier of throughput (?:and|against) device-hours is known)|"
    r"(?P<first>\S+) against (?P<second>\S+) is decided) within (?P<within>\S+?)\s*(?:%|percent)"
)


@dataclass(frozen=True)
class Question:
    """A question about the cells of a campaign that `where` selects.

    within_pct: what may remain unknown. first, second: configurations that are compared.
    """

    text: str
    form: Form
    within_pct: float
    first: str = ""
    second: str = ""
    where: Expression | None = None

    @property
    def tolerance(self) -> float:
        """How much less good, as a logarithm, is as good as equal."""
        return -math.log1p(-self.within_pct / 100)

    def about(self, cell: Cell) -> bool:
        """Whether a cell is one of those that it asks about."""
        if self.form == "comparison" and cell.configuration.name not in (self.first, self.second):
            return False
        return self.beside(cell)

    def beside(self, cell: Cell) -> bool:
        """Whether a cell is like those: of a comparison, also of another configuration."""
        return self.where is None or self.where(cell.axes())


def parse_question(text: str, campaign: Campaign) -> Question:
    """Read a question. ConfigError lists the forms that are allowed, or names what is not known."""
    asked = " ".join(text.split()).rstrip(".")
    body, _, about = asked.partition(" for ")
    where = parse(about, axis_names(campaign), "--until") if about else None
    if (found := _QUESTION.fullmatch(body)) is None:
        raise ConfigError(_not_understood(text, campaign))
    percentage = _percentage(text, found["within"])
    known = [each.name for each in campaign.configurations]
    for name in (found["first"], found["second"]):
        if name and name not in known:
            raise ConfigError(f"--until: the campaign has no configuration '{name}'; {nearest(name, known)}")
    if found["first"] and found["first"] == found["second"]:
        raise ConfigError(f"--until: '{found['first']}' is compared with itself; name two configurations")
    form: Form = "best" if found["best"] else "frontier" if found["frontier"] else "comparison"
    question = Question(asked, form, percentage, found["first"] or "", found["second"] or "", where)
    if not any(question.about(cell) for cell in expand(campaign).cells):
        raise ConfigError(f"--until: the campaign has no cell that '{question.text}' is about; see 'campaign plan'")
    return question


def _percentage(text: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 < value < 100:
        raise ConfigError(f"--until: '{text}' needs a percentage above 0 and below 100, such as 'within 5 %'")
    return value


def _not_understood(text: str, campaign: Campaign) -> str:
    names = [each.name for each in campaign.configurations]
    pair = f"{names[0]} against {names[-1]}"
    forms = [each.replace("CONFIGURATION against CONFIGURATION", pair) for each in FORMS]
    forms = [each for each in forms if len(names) > 1 or "against" not in each]
    workload, batch = campaign.file.axes.workload[0], campaign.file.axes.batch[0]
    return (
        f"--until: '{text}' is no question that can be answered; ask for one of: "
        + "; ".join(f'"{form}"' for form in forms)
        + f'; each may end in "for EXPRESSION", such as "for workload == \'{workload}\' and batch == {batch}"'
    )
