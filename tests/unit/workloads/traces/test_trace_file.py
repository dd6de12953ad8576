"""The text of a trace: what repeats stands once, and a file that people have edited keeps what they wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from campaign.config.load import validate
from campaign.config.yaml_file import parse_yaml
from campaign.errors import ConfigError
from campaign.workloads.protocol import Workload
from campaign.workloads.replay import ComputeRow, ReplayWorkload
from campaign.workloads.traces.trace_file import TracedLayer, folded, make_trace, text_of, with_rows

LAYERS = [
    TracedLayer("first", "Conv2d", (9, 3), 1.0, 2.0),
    TracedLayer("block.0", "Block", (64, 64), 3.0, 6.0, unit=True),
    TracedLayer("block.1", "Block", (64, 64), 5.0, 10.0, unit=True),
    TracedLayer("wide", "Block", (128, 128), 3.0, 6.0, unit=True),
]
EDITED = """\
# Written by hand.
name: edited
kind: replay
precisions:  # all of them
  - fp32
layers:
  - {name: first, tensors: [9, 3], forward: 2}
  - {name: block, repeat: 2, tensors: [64, 64], forward: 1}  # the same twice
  - {name: wide, tensors: [128, 128], forward: 1, unit: true}
compute:
- device: a
  precision: fp32
  batch: 1
  seconds: 1.5  # a guess

# The end.
optimizer: 1
"""


def row(device: str = "a", batch: int = 8, precision: str = "fp32", seconds: float = 0.5) -> ComputeRow:
    return ComputeRow.model_validate(
        {"device": device, "precision": precision, "batch": batch, "seconds": seconds, "source": "page 3"}
    )


def trace(*rows: ComputeRow) -> ReplayWorkload:
    return make_trace(
        "small", "A: small, one", LAYERS, 0.5, rows, 100, {"parallel": "zero1", "seq_len": 3, "input": "h2d"}
    )


def test_layers_in_a_row_of_one_kind_with_the_same_tensors_are_folded_to_their_mean() -> None:
    first, block, wide = folded(LAYERS)
    assert (block.name, block.repeat, block.tensors, block.forward, block.backward) == (
        "block.0",
        2,
        (64, 64),
        4.0,
        8.0,
    )
    assert (first.repeat, wide.repeat) == (1, 1)
    assert [layer.is_unit for layer in (first, block, wide)] == [False, True, True]
    apart = [LAYERS[1], LAYERS[0], LAYERS[2]]
    assert [layer.repeat for layer in folded(apart)] == [1, 1, 1]
    assert [layer.repeat for layer in folded([LAYERS[1], LAYERS[2]._replace(kind="Other")])] == [1, 1]


def test_the_text_is_a_valid_file_with_one_line_a_layer_and_says_what_the_trace_says() -> None:
    made = trace(row(), row(precision="bf16"))
    text = text_of(made)
    assert validate(parse_yaml(text, Path("small.yaml")), Workload, "small") == made
    assert [line for line in text.splitlines() if "block" in line] == [
        "  - {name: block.0, repeat: 2, tensors: [64, 64], forward: 4.0, backward: 8.0}"
    ]
    assert text.splitlines()[0] == "name: small"
    assert "input_bytes: 100\n" in text
    # Of the options, those that a replay has too, with the same values.
    assert made.options == {"parallel": "zero1"}


@pytest.mark.parametrize(
    "text",
    [
        text_of(trace(row(batch=1))),
        EDITED,
        EDITED.replace("# The end.\noptimizer: 1\n", ""),
        EDITED.replace("seconds: 1.5  # a guess\n", "seconds: 1.5\n  source: |\n    two\n    lines\n"),
    ],
)
def test_rows_are_added_to_a_file_and_everything_else_stays(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    there = ReplayWorkload.model_validate(yaml.safe_load(text))
    changed = with_rows(there, path, trace(row("b", precision="bf16"), row("c")))
    after = ReplayWorkload.model_validate(yaml.safe_load(changed))
    assert [(each.device, each.batch, each.source) for each in after.compute[1:]] == [
        ("b", 8, "page 3"),
        ("c", 8, "page 3"),
    ]
    assert after.precisions == ("fp32", "bf16")
    assert after.model_copy(update={"compute": there.compute, "precisions": there.precisions}) == there
    if "# a guess" in text:
        rows = "\n- {device: b, precision: bf16, batch: 8, seconds: 0.5, source: page 3}\n- {device: c,"
        assert f"  seconds: 1.5  # a guess{rows}" in changed
    lost = [line for line in text.splitlines() if line not in changed]
    assert set(lost) <= {"precisions: [fp32]", "precisions:  # all of them", "  - fp32"}


def test_rows_of_another_model_and_rows_that_are_there_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(text_of(trace(row())))
    with pytest.raises(ConfigError, match=r"has a row for a, fp32, batch 8; remove"):
        with_rows(trace(row()), path, trace(row()))
    other = make_trace("other", "", LAYERS[:2], 0.0, [row("b")])
    with pytest.raises(ConfigError, match="its layers are not those of other"):
        with_rows(trace(row()), path, other)
