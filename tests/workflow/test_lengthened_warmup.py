"""A longest warm-up through the public path: the campaign file, the runs, their records, the tables and the page."""

from __future__ import annotations

import pytest

from campaign.workloads.steady_warmup import NOT_STEADY
from tests.workflow.checkout_twin import Project


@pytest.mark.slow
def test_the_record_says_how_many_warm_up_steps_were_made_and_whether_they_were_enough(project: Project) -> None:
    project.synthetic("short", noise_pct=0.5, cold_pct=80, cold_steps=8)
    project.synthetic("long", noise_pct=0.5, cold_pct=300, cold_steps=200)
    nano = {"name": "nano", "kind": "train", "model": "bert-nano", "precisions": ["fp32"], "options": {"seq_len": 16}}
    project.write("workloads/nano.yaml", nano)
    steps = {"warmup_steps": 4, "warmup_steps_max": 80, "measured_steps": 20}
    project.campaign(workload=["short", "long", "nano", "logged"], devices=[2], links={"when": []}, **steps)
    project.write_tables()
    records = {record.cell.workload: record for record in project.records()}
    assert {record.status for record in records.values()} == {"ok"}
    made = {name: record.warmup_steps for name, record in records.items()}
    assert made["logged"] is None  # a program that makes its own
    assert 24 <= (made["short"] or 0) < 80
    assert made["long"] == 80
    assert 20 <= (made["nano"] or 0) <= 80
    assert [name for name in ("short", "long") if NOT_STEADY in records[name].flags] == ["long"]
    assert records["short"].specification["warmup_steps_max"] == 80
    assert "warmup_steps_max" not in records["logged"].specification
    page = project.page()
    assert NOT_STEADY in page
    assert "does not apply to workload" in page
