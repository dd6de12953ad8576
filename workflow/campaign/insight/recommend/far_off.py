"""Why a cell was predicted far off when its configuration was left out of the fit, in words. Pure."""

from __future__ import annotations

import numpy as np

from campaign.insight.recommend.candidates import TRUSTED_PCT, Limits, Modelled
from campaign.insight.recommend.fit import Checked, Fitted
from campaign.insight.recommend.model import Model

FEWEST_OF_A_WAY = 2


def reasons(each: Modelled) -> list[str]:
    """For each measured cell of the model; '' where it is within TRUSTED_PCT, or could not be predicted."""
    if each.fitted is None or each.checked is None:
        return [""] * len(each.observed.cells)
    of = _Cells(each, each.fitted, each.checked)
    far = np.nan_to_num(np.abs(each.checked.error_pct)) > TRUSTED_PCT
    return [of.reason(place) if off else "" for place, off in enumerate(far)]


class _Cells:
    def __init__(self, each: Modelled, fitted: Fitted, checked: Checked) -> None:
        self.untrusted = each.untrusted
        self.cells = each.observed.cells
        self.rows = each.observed.rows()
        self.names = np.array(each.observed.strategies)[fitted.structure.of_groups()[self.rows.group]]
        self.hidden = Model(fitted.structure, self.rows).at(fitted.theta).hidden

    def reason(self, place: int) -> str:
        """The first that holds."""
        row = self.cells.iloc[place]
        others = (self.cells["configuration"] != row["configuration"]).to_numpy()
        if outside := Limits.of(self.cells[others]).outside(row.to_dict()):
            return f"extrapolated without it: {outside}"
        if self.names[place] and self.names[place] in self.untrusted:
            return f"the model does not describe {self.names[place]}"
        alike = others & (self.rows.way >= 0) & (self.names == self.names[place])
        if row["ranks"] > 1 and alike.any() and (self.hidden[alike] != self.hidden[place]).all():
            hides = "all communication that can hide" if self.hidden[place] else "only a part of communication"
            return f"no other configuration hides {hides}"
        way = self.cells.loc[others & (self.cells["way"] == row["way"]).to_numpy(), "configuration"].nunique()
        if row["way"] and way < FEWEST_OF_A_WAY:
            return f"{'one other configuration' if way else 'no other configuration'} communicates over {row['way']}"
        return "not described by the model"
