from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.common.errors import ConfigError
from campaign.plan import matrix
from campaign.plan.campaign import expand_shapes as combinations
from campaign.plan.campaign.resolve import campaign_from_document
from campaign.plan.matrix import build_specification, expand_matrix, hash_run_set, hash_specification
from tests.campaign_files import CAMPAIGN, ids, load

BATCHES = st.lists(st.integers(1, 64), min_size=1, max_size=4, unique=True)
PRECISIONS = st.lists(st.sampled_from(["fp32", "bf16"]), min_size=1, max_size=2, unique=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("campaign")


@settings(max_examples=25, deadline=None)
@given(BATCHES, PRECISIONS, st.lists(st.integers(1, 2), min_size=1, max_size=2, unique=True), st.integers(0, 64))
def test_size_is_the_product_of_the_axes_less_what_is_excluded(
    home: Path, batches: list[int], precisions: list[str], devices: list[int], limit: int
) -> None:
    changes = {
        "campaign.axes.batch": batches,
        "campaign.axes.precision": precisions,
        "campaign.configurations": [{"devices_per_host": devices}],
        "campaign.exclude": [{"when": f"batch > {limit}", "why": "too large"}],
    }
    kept = [batch for batch in batches if batch <= limit]
    campaign = load(home, changes)
    if not kept:
        with pytest.raises(ConfigError, match=f"removed by 'batch > {limit}' \\(too large\\)"):
            expand_matrix(campaign)
        return
    made = expand_matrix(campaign)
    product = len(batches) * len(precisions) * len(devices)
    assert len(made.cells) == len(kept) * len(precisions) * len(devices)
    assert len(made.cells) + sum(removed.cells for removed in made.removed) == product
    assert len({cell.id for cell in made.cells}) == len(made.cells)


@settings(max_examples=15, deadline=None)
@given(BATCHES, BATCHES, st.randoms(use_true_random=False))
def test_more_values_in_another_order_keep_every_cell(
    home: Path, some: list[int], more: list[int], random: Any
) -> None:
    wider = list(dict.fromkeys([*some, *more]))
    random.shuffle(wider)
    assert ids(home, {"campaign.axes.batch": some}) <= ids(home, {"campaign.axes.batch": wider})


SAME = {
    "title": {"campaign.title": "Other words"},
    "repetitions": {"campaign.protocol.repetitions": 9},
    "limits": {"campaign.protocol.time_limit_s": 5, "campaign.protocol.memory_limit_mib": 100},
    "attempts": {"campaign.protocol.attempts": 7, "campaign.protocol.compose_wait_s": 1},
    "order": {"campaign.protocol.order": "sequential", "campaign.protocol.lease_per": "cell"},
    "reordered": {"campaign.axes.batch": [2, 1], "campaign.axes.precision": ["bf16", "fp32"]},
    "scalars and lists": {"campaign.axes.workload": "steps"},
    "renamed": {
        "campaign.configurations": [
            {"name": "alone", "devices_per_host": 1},
            {"devices_per_host": 2},
            {"devices_per_host": [1, 2], "attach": "fabric"},
        ]
    },
    "campaign renamed": {"campaign.name": "other"},
    "words of the workload": {
        "workloads.steps.description": "clearer",
        "workloads.steps.precisions": ["fp32", "bf16", "fp16"],
    },
    "an option becomes an axis": {"campaign.axes.options": {"size": [8]}},
    "site": {"system.slurm": {"partition": "gpu"}, "system.notes": ["a note"], "system.description": "words"},
    "more hosts": {"system.hosts.0.name": "host[1-9]"},
}
OTHER = {
    "label": {"campaign.version": "driver-580"},
    "batch": {"campaign.axes.batch": [3, 4]},
    "precision": {"campaign.axes.precision": ["fp16"], "workloads.steps.precisions": ["fp16"]},
    "workload content": {"workloads.steps.sample_ms": 2.5},
    "default of an option": {"workloads.steps.options.size": 9},
    "shape": {"campaign.configurations": [{"hosts": 2}]},
    "part of a host": {"campaign.configurations": [{"devices_per_host": 2, "devices_used": 1}]},
    "storage": {"campaign.configurations.0.storage": "nvme"},
    "warm-up": {"campaign.protocol.warmup_steps": 2},
    "longest warm-up": {"campaign.protocol.warmup_steps_max": 40},
    "another longest warm-up by cell": {"campaign.overrides": [{"when": "batch > 0", "warmup_steps_max": 40}]},
    "measured steps": {"campaign.protocol.measured_steps": 4},
    "seed": {"campaign.protocol.seed": 1},
    "device": {"system.devices.cpu-rank.runs_on": "cuda"},
}
LABELS = st.text("abz09.", max_size=9).map("v{}".format)  # numbers are refused: YAML writes them anew


@settings(max_examples=15, deadline=None)
@given(LABELS, LABELS)
def test_a_label_is_all_that_sets_its_cells_apart(home: Path, one: str, two: str) -> None:
    plain = load(home)
    first, second = (plain.with_version(label) for label in (one, two))
    cells = [{cell.id for cell in expand_matrix(each).cells} for each in (plain, first, second)]
    assert cells[0].isdisjoint(cells[1])
    assert (cells[1] == cells[2]) == (one == two)
    assert expand_matrix(first.with_version("none")).cells == expand_matrix(plain).cells
    labelled, bare = (build_specification(each, expand_matrix(each).cells[0]) for each in (first, plain))
    assert labelled == {**bare, "version": one}
    assert expand_matrix(campaign_from_document(first.to_document())).cells == expand_matrix(first).cells


@pytest.mark.parametrize("changes", SAME.values(), ids=SAME)
def test_what_is_measured_keeps_its_identity_when(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert ids(tmp_path / "b", changes) == ids(tmp_path / "a")


@pytest.mark.parametrize("changes", OTHER.values(), ids=OTHER)
def test_it_is_another_cell_with_another(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert ids(tmp_path / "b", changes).isdisjoint(ids(tmp_path / "a"))


def test_emulated_links_are_identity_by_their_rates_alone(tmp_path: Path) -> None:
    links = {"fabric": {"gb_per_s": 10.0, "source": "a paper"}}
    emulated = ids(tmp_path / "a", {"system.links": links, "system.emulation": {"scale": 0.01}})
    assert emulated.isdisjoint(ids(tmp_path / "plain", {"system.links": links}))
    assert emulated.isdisjoint(ids(tmp_path / "b", {"system.links": links, "system.emulation": {"scale": 0.02}}))
    other = {"fabric": {"gb_per_s": 10.0, "source": "another", "latency_us": 2.0}}
    assert emulated == ids(tmp_path / "c", {"system.links": other, "system.emulation": {"scale": 0.01}})
    # Local links are emulated where they have a rate, and told of where nothing is emulated.
    local = {**links, "local": {"gb_per_s": 30.0}}
    assert emulated.isdisjoint(ids(tmp_path / "d", {"system.links": local, "system.emulation": {"scale": 0.01}}))
    assert ids(tmp_path / "e", {"system.links": local}) == ids(tmp_path / "plain", {"system.links": links})


def test_a_new_axis_keeps_the_cells_of_the_default_value(tmp_path: Path) -> None:
    wide = expand_matrix(load(tmp_path / "b", {"campaign.axes.options": {"size": [4, 8, 16]}})).cells
    assert {cell.id for cell in wide if cell.options["size"] == 8} == ids(tmp_path / "a")
    assert len(wide) == 3 * len(ids(tmp_path / "a"))


def test_id_is_the_hash_of_the_specification_that_records_keep(tmp_path: Path) -> None:
    campaign = load(tmp_path, {"campaign.axes.options": {"size": [4, 8]}})
    cells = expand_matrix(campaign).cells
    assert [hash_specification(build_specification(campaign, cell)) for cell in cells] == [cell.id for cell in cells]


def test_the_campaign_as_used_has_the_same_cells(tmp_path: Path) -> None:
    campaign = load(tmp_path)
    assert expand_matrix(campaign_from_document(campaign.to_document())).cells == expand_matrix(campaign).cells


def test_a_subset_of_configurations_gives_exactly_their_cells(tmp_path: Path) -> None:
    campaign = load(tmp_path)
    by_parts = [expand_matrix(campaign, configurations=[c.name]).cells for c in campaign.configurations]
    assert sorted(cell.id for cells in by_parts for cell in cells) == sorted(
        cell.id for cell in expand_matrix(campaign).cells
    )


@pytest.mark.parametrize(
    ("where", "expected"), [("batch == 2", 8), ("ranks == 2 and attach == 'fabric'", 4), ("batch_global >= 4", 4)]
)
def test_where_selects(tmp_path: Path, where: str, expected: int) -> None:
    made = expand_matrix(load(tmp_path), where)
    assert len(made.cells) == expected
    assert [(r.why, r.cells) for r in made.removed] == [("not selected", 16 - expected)]


def test_zipped_axes_go_together(tmp_path: Path) -> None:
    campaign = load(tmp_path, {"campaign.zip": [["batch", "precision"]]})
    assert {(cell.batch, cell.precision) for cell in expand_matrix(campaign).cells} == {(1, "fp32"), (2, "bf16")}


def test_zip_with_configurations_survives_taking_one_lease(tmp_path: Path) -> None:
    campaign = load(tmp_path, {"campaign.zip": [["configuration", "batch"]], "campaign.axes.batch": [1, 2, 3, 4]})
    whole = expand_matrix(campaign).cells
    assert [cell.batch for cell in whole if cell.precision == "fp32"] == [1, 2, 3, 4]
    last = campaign.configurations[-1].name
    assert [c.id for c in expand_matrix(campaign, configurations=[last]).cells] == [
        c.id for c in whole if c.configuration.name == last
    ]


def test_overrides_change_settings_and_axes_of_the_selected_cells(tmp_path: Path) -> None:
    overrides = [
        {"when": "batch == 2", "repetitions": 7, "time_limit_s": 4.0},
        {"when": "batch == 2 and precision == 'bf16'", "repetitions": 1},
        {"when": "attach == 'fabric'", "axes": {"precision": "fp32"}},
    ]
    cells = expand_matrix(load(tmp_path, {"campaign.overrides": overrides})).cells
    settings_of = {
        (c.configuration.attach, c.batch, c.precision): (c.settings.repetitions, c.settings.time_limit_s) for c in cells
    }
    assert settings_of == {
        ("local", 1, "fp32"): (2, 900.0),
        ("local", 1, "bf16"): (2, 900.0),
        ("local", 2, "fp32"): (7, 4.0),
        ("local", 2, "bf16"): (1, 4.0),
        ("fabric", 1, "fp32"): (2, 900.0),
        ("fabric", 2, "fp32"): (7, 4.0),
    }


def test_only_the_cells_whose_warm_up_is_lengthened_become_others(tmp_path: Path) -> None:
    """A program makes its own warm-up, so that the key changes nothing of its cells, and the matrix says so."""
    both = {"campaign.axes.workload": ["steps", "program"]}
    plain = {cell.id: cell for cell in expand_matrix(load(tmp_path / "a", both)).cells}
    lengthened = expand_matrix(load(tmp_path / "b", {**both, "campaign.protocol.warmup_steps_max": 40}))
    kept = [cell for cell in lengthened.cells if cell.id in plain]
    assert {(cell.workload, cell.settings.warmup_steps_max) for cell in kept} == {("program", None)}
    others = [cell for cell in lengthened.cells if cell.id not in plain]
    assert {(cell.workload, cell.settings.warmup_steps_max) for cell in others} == {("steps", 40)}
    (note,) = lengthened.notes
    assert "warmup_steps_max does not apply to workload 'program'" in note
    only = [{"when": "workload == 'steps'", "warmup_steps_max": 40}]
    assert expand_matrix(load(tmp_path / "c", {**both, "campaign.overrides": only})).notes == ()


NANO = {"campaign.axes.workload": ["steps", "program", "nano"]}
ON_GPUS = {**NANO, "system.devices.cpu-rank.runs_on": "cuda"}


def seconds(path: Path, changes: dict[str, Any]) -> dict[str, set[tuple[Any, Any]]]:
    """(warmup_min_s, measured_min_s) of the cells of each workload."""
    found: dict[str, set[tuple[Any, Any]]] = {}
    for cell in expand_matrix(load(path, changes)).cells:
        found.setdefault(cell.workload, set()).add((cell.settings.warmup_min_s, cell.settings.measured_min_s))
    return found


def test_built_in_training_lasts_five_seconds_on_gpus_and_only_there(tmp_path: Path) -> None:
    assert seconds(tmp_path / "cpu", NANO)["nano"] == {(0.0, 0.0)}
    assert seconds(tmp_path / "gpu", ON_GPUS) == {
        "steps": {(None, None)},
        "program": {(None, None)},
        "nano": {(5.0, 5.0)},
    }
    override = {"campaign.overrides": [{"when": "workload == 'nano' and batch == 2", "measured_min_s": 9}]}
    assert seconds(tmp_path / "some", {**ON_GPUS, **override})["nano"] == {(5.0, 5.0), (5.0, 9.0)}


def test_a_least_time_makes_other_cells_and_none_leaves_them(tmp_path: Path) -> None:
    asked = {"campaign.protocol.warmup_min_s": 2, "campaign.protocol.measured_min_s": 3}
    none = dict.fromkeys(asked, 0)
    plain = ids(tmp_path / "a", NANO)
    assert ids(tmp_path / "b", {**NANO, **none}) == plain
    made = expand_matrix(load(tmp_path / "c", {**NANO, **asked}))
    assert {cell.workload for cell in made.cells if cell.id not in plain} == {"nano"}
    assert sorted(note.split(" applies")[0].split(":")[0] for note in made.notes) == [
        f"{key} does not apply to workload '{name}'"
        for key in ("measured_min_s", "warmup_min_s")
        for name in ("program", "steps")
    ]
    campaign = load(tmp_path / "d", ON_GPUS)
    (cell, *_) = (cell for cell in expand_matrix(campaign).cells if cell.workload == "nano")
    assert (
        build_specification(campaign, cell)["measured_min_s"]
        == build_specification(campaign, cell)["warmup_min_s"]
        == 5.0
    )


def test_a_longest_warm_up_that_is_too_short_to_see_a_trend_is_refused(tmp_path: Path) -> None:
    protocol = {"campaign.protocol.warmup_steps": 9, "campaign.protocol.warmup_steps_max": 44}
    with pytest.raises(ConfigError, match=r"warmup_steps_max is 44, but .* after 45 steps"):
        expand_matrix(load(tmp_path, protocol))


def test_cells_that_a_workload_does_not_support_are_told(tmp_path: Path) -> None:
    changes = {"campaign.axes.workload": ["steps", "program"], "workloads.program.precisions": ["fp32"]}
    made = expand_matrix(load(tmp_path, changes))
    assert [(r.rule, r.cells) for r in made.removed] == [("program with bf16", 8)]
    assert {c.precision for c in made.cells if c.workload == "program"} == {"fp32"}


@pytest.mark.parametrize("key", ["exclude", "where"])
def test_the_first_rule_that_removes_a_cell_is_the_one_that_is_told(tmp_path: Path, key: str) -> None:
    exclude = [{"when": "batch == 2", "why": "first"}, {"when": "batch == 2 and precision == 'fp32'", "why": "second"}]
    made = expand_matrix(
        load(tmp_path, {"campaign.exclude": exclude}), "precision == 'fp32'" if key == "where" else None
    )
    told = {removed.why: removed.cells for removed in made.removed}
    assert told["first"] == 8
    assert "second" not in told


def test_more_cells_than_a_plan_can_hold_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = load(tmp_path)
    monkeypatch.setattr(matrix, "MAX_COMBINATIONS", 15)
    with pytest.raises(ConfigError, match="more than 15 cells"):
        expand_matrix(campaign)


def test_lists_that_multiply_beyond_reason_are_refused_before_they_are_made() -> None:
    axes = {str(number): range(1000) for number in range(5)}
    with pytest.raises(ConfigError, match=f"at most {combinations.MAX_COMBINATIONS}"):
        next(combinations.combine_values(axes, [], "campaign.yaml:3: axes"))


@given(
    st.dictionaries(st.sampled_from("abcde"), st.lists(st.integers(), min_size=1, max_size=3), min_size=1), st.data()
)
def test_product_has_every_combination_once(axes: dict[str, list[int]], data: st.DataObject) -> None:
    made = [tuple(values[name] for name in axes) for values in combinations.combine_values(axes, [], "x")]
    assert made == list(itertools.product(*axes.values()))


@pytest.mark.parametrize(
    ("zips", "message"),
    [
        ([["a", "z"]], "'z' is not an axis here"),
        ([["a", "b"]], "must have the same length, but a has 2, b has 3"),
        ([["a", "c"], ["c", "d"]], "'c' appears in two zips"),
    ],
)
def test_zip_that_cannot_be(zips: list[list[str]], message: str) -> None:
    axes = {"a": [1, 2], "b": [1, 2, 3], "c": [1, 2], "d": [1, 2]}
    with pytest.raises(ConfigError, match=message):
        next(combinations.combine_values(axes, zips, "x"))


def test_run_set_changes_exactly_with_cells_and_repetitions(tmp_path: Path) -> None:
    cells = expand_matrix(load(tmp_path)).cells
    again = expand_matrix(load(tmp_path, {"campaign.protocol.time_limit_s": 3})).cells
    more = expand_matrix(load(tmp_path, {"campaign.protocol.repetitions": 3})).cells
    assert hash_run_set(cells) == hash_run_set(tuple(reversed(again)))
    assert hash_run_set(cells) != hash_run_set(more)
    assert hash_run_set(cells) != hash_run_set(cells[1:])
    digests = set()
    for target in ({}, {"target_half_width_pct": 2.0}, {"target_half_width_pct": 1.0}):
        for fewest in (2, 3):
            protocol = {"repetitions": 5, "repetitions_min": fewest, **target}
            changes = {f"campaign.protocol.{name}": value for name, value in protocol.items()}
            digests.add(hash_run_set(expand_matrix(load(tmp_path, changes)).cells))
    assert len(digests) == 5  # without a target, the fewest say nothing


def test_hashing_is_linear_in_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    real = matrix.hash_document
    monkeypatch.setattr(matrix, "hash_document", lambda document: hashed.append(len(repr(document))) or real(document))

    def cost(batches: int) -> tuple[int, int]:
        campaign = load(tmp_path, {"campaign.axes.batch": list(range(1, batches + 1))})
        hashed.clear()
        return len(expand_matrix(campaign).cells), sum(hashed)

    (few, small), (many, large) = cost(10), cost(100)
    assert many == 10 * few
    assert large <= 10.5 * small


def test_the_base_campaign_is_what_these_tests_assume(tmp_path: Path) -> None:
    assert len(ids(tmp_path)) == 4 * len(CAMPAIGN["axes"]["batch"]) * len(CAMPAIGN["axes"]["precision"])


def test_a_key_at_its_default_is_no_part_of_identity(tmp_path: Path) -> None:
    """So that a key that a later version adds measures nothing again."""
    campaign = load(tmp_path, {"workloads.steps.noise_pct": 2.0})
    workload = build_specification(campaign, expand_matrix(campaign).cells[0])["workload"]
    assert workload == {"name": "steps", "kind": "synthetic", "noise_pct": 2.0, "real_time": False}


def test_a_common_option_becomes_an_axis_without_measuring_its_default_again(tmp_path: Path) -> None:
    training = {"campaign.axes.workload": ["nano"]}
    before = ids(tmp_path, training)
    assert ids(tmp_path, training | {"campaign.axes.options": {"parallel": ["ddp"]}}) == before
    both = ids(tmp_path, training | {"campaign.axes.options": {"parallel": ["ddp", "fsdp"]}})
    assert both > before
    assert len(both) == 2 * len(before)
