"""`campaign predict`, and `campaign published` of predictions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from campaign.cli.main import main
from tests.campaign_files import write_files
from tests.unit.insight.test_prediction import CHANGES

CONFIG = Path(__file__).resolve().parents[3] / "config"
STUDY = CONFIG / "campaigns" / "bitfusion-predicted.yaml"
CHAKRA = Path(__file__).resolve().parents[2] / "data" / "chakra"
SHIPPED = [CONFIG / "campaign.yaml", *sorted(CONFIG.glob("campaigns/*.yaml"))]


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    return write_files(tmp_path, CHANGES)


def test_a_table_says_what_may_come_out(campaign: Path, tmp_path: Path) -> None:
    result = run("predict", campaign, "--results", tmp_path / "results", "--no-report")
    assert result.exit_code == 0, result.output
    assert "1x2-fabric" in result.output
    assert "10 cells predicted, none measured." in result.output
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_campaign_that_comes_with_the_project_is_predicted(path: Path, tmp_path: Path) -> None:
    result = run("predict", path, "--results", tmp_path, "--no-report", "--format", "json")
    assert result.exit_code == 0, result.output
    cells = json.loads(result.output)["cells"]
    known = [cell for cell in cells if cell["throughput_per_s"]]
    assert all(
        cell["throughput_per_s_low"] < cell["throughput_per_s"] < cell["throughput_per_s_high"] for cell in known
    )
    # Serving programs are the only ones there whose inside the model does not know.
    assert len(known) == (0 if path.stem == "inference" else len(cells))


def test_compute_times_that_nobody_measured_are_named(tmp_path: Path) -> None:
    said = run("predict", CONFIG / "campaigns" / "remote-study.yaml", "--results", tmp_path, "--no-report").output
    assert "known up to a factor of 30: resnet50 v100 fp32" in said.replace("\n", " ")
    assert "peak_tflops" in said
    known = run("predict", STUDY, "--results", tmp_path, "--no-report").output
    assert "Nobody measured" not in known


def test_memory_that_no_file_names_leaves_it_open_whether_a_batch_fits(tmp_path: Path) -> None:
    words = ("--results", tmp_path, "--no-report", "--where", "devices == 1")
    said = run("predict", CONFIG / "campaign.yaml", *words).output
    assert "unknown" in said
    assert "Whether batches fit is unknown: the system file has no memory_gib of cpu-rank." in said.replace("\n", " ")
    assert "unknown" not in run("predict", STUDY, *words).output


def test_cells_are_selected(campaign: Path, tmp_path: Path) -> None:
    result = run("predict", campaign, "--results", tmp_path, "--no-report", "--where", "batch == 4", "--format", "tsv")
    head, *rows = result.output.splitlines()
    assert head.startswith("configuration\tworkload\tbatch")
    assert len(rows) == 5


def test_a_document_has_numbers_and_their_intervals(campaign: Path, tmp_path: Path) -> None:
    said = json.loads(run("predict", campaign, "--results", tmp_path, "--no-report", "--format", "json").output)
    for cell in said["cells"]:
        assert cell["throughput_per_s_low"] < cell["throughput_per_s"] < cell["throughput_per_s_high"]
        assert cell["batch"] * cell["ranks"] / cell["step_s"] == pytest.approx(cell["throughput_per_s"])
        assert cell["fits"] == 1.0


def test_the_report_is_written_and_says_that_nothing_was_measured(campaign: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("predict", campaign, "--results", tmp_path, "--where", "batch == 4", "--output", out)
    assert result.exit_code == 0, result.output
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "No device was measured." in page
    assert "predicted" in page
    summary = run("summary", out)
    assert "No device was measured." in summary.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--where", "gpus == 2"), "gpus"),
        (("--where", "batch == 5"), "no cell"),
        (("--format", "yaml"), "yaml"),
    ],
)
def test_what_cannot_be_predicted_is_one_message(
    words: tuple[str, ...], says: str, campaign: Path, tmp_path: Path
) -> None:
    result = run("predict", campaign, "--results", tmp_path, "--no-report", *words)
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit)
    assert says in result.output


def test_a_campaign_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = run("predict", tmp_path / "none.yaml")
    assert result.exit_code == 1
    assert "none.yaml" in result.output


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("rate[nowhere", {"low": 1, "high": 2}, "no parameter has this name"),
        ("slowdwn", {"low": 0.1, "high": 0.2}, "slowdown"),
        ("slowdown", {"low": 0.2, "high": 0.1}, "80 % interval"),
        ("slowdown", {"low": 0.2, "high": 1.5}, "80 % interval"),
        ("rate[network]", {"low": 0, "high": 1e9}, "80 % interval"),
    ],
)
def test_a_parameter_that_means_nothing_is_named(name: str, given: dict[str, float], says: str, tmp_path: Path) -> None:
    campaign = write_files(tmp_path, {**CHANGES, "system.parameters": {name: given}})
    result = run("predict", campaign, "--no-report")
    assert result.exit_code == 1
    assert f"parameters.{name}" in result.output
    assert says in result.output


def test_claims_are_held_against_predictions() -> None:
    said = json.loads(run("published", "--predict", STUDY, "--format", "json").output)
    verdicts = {claim["id"]: claim["verdict"] for claim in said["claims"]}
    assert verdicts["bitfusion.t1.gpu_gpu"] == "input"
    assert verdicts["bitfusion.f10.native"] in ("agrees", "differs")
    assert {claim["basis"] for claim in said["claims"] if claim["cells"]} == {"predicted"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--predict", "--given", "bitfusion.nothing"), "bitfusion.nothing: is no claim of these campaigns"),
        (("--predict", "--given", "bitfusion.f10.native"), "bitfusion.f10.native: cannot condition predictions"),
    ],
)
def test_a_claim_that_teaches_nothing_is_one_message(words: tuple[str, ...], says: str) -> None:
    result = run("published", STUDY, *words)
    assert result.exit_code == 1
    assert says in result.output.replace("\n", " ")


def test_measured_results_cannot_be_conditioned(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("predict", STUDY, "--results", tmp_path, "--output", out, "--where", "batch == 64").exit_code == 0
    (out / "tables" / "draws.parquet").unlink()
    result = run("published", out, "--given", "bitfusion.f9.remote_ge_native")
    assert result.exit_code == 1
    assert "cannot condition predictions" in result.output.replace("\n", " ")


REAL = {
    **CHANGES,
    "system.hosts": [{"name": "host[1-2]", "cores": 8, "devices": [{"model": "a100-40gb", "count": 2}]}],
    "system.pool": None,
    "system.devices": None,
    "campaign.configurations": [{"devices_per_host": 2, "hosts": [1, 2]}],
    "campaign.axes": {"workload": ["traced"], "batch": [8], "precision": ["fp32"]},
}


def test_a_trace_is_an_input_for_a_real_system(tmp_path: Path) -> None:
    """No device is emulated: a replay would be refused, and a prediction needs none."""
    campaign = write_files(tmp_path, REAL)
    trace = tmp_path / "workloads" / "traced.yaml"
    made = run("workload", "trace", "bert-nano", "--device-model", "a100-40gb", "--batch", 8, "--precision", "fp32",
               "--samples-per-s", 400, "--source", "a page", "--output", trace)  # fmt: skip
    assert made.exit_code == 0, made.output
    result = run("predict", campaign, "--no-report", "--format", "json")
    assert result.exit_code == 0, result.output
    one, two = json.loads(result.output)["cells"]
    assert 1 < two["throughput_per_s"] / one["throughput_per_s"] <= 2
    assert one["throughput_per_s"] < 800


@pytest.mark.parametrize("name", ["data-parallel.0.et", "data-parallel.0.json"])
def test_a_chakra_trace_is_an_input_of_the_same_model(tmp_path: Path, name: str) -> None:
    """Its times are those of one device; its bytes cost what the links of the system say."""
    pytest.importorskip("google.protobuf")
    traced = ("workload", "trace", CHAKRA / name, "--device-model", "a100-40gb", "--batch", 8, "--precision", "fp32")
    steps: dict[float, list[float]] = {}
    for gb_per_s in (1.0, 0.1):
        shapes = [{"devices_per_host": 1}, {"devices_per_host": 1, "hosts": 2}]
        changes = {**REAL, "campaign.configurations": shapes, "system.links": {"network": {"gb_per_s": gb_per_s}}}
        campaign = write_files(tmp_path / str(gb_per_s), changes)
        made = run(*traced, "--output", campaign.parent / "workloads" / "traced.yaml")
        assert made.exit_code == 0, made.output
        result = run("predict", campaign, "--no-report", "--format", "json")
        assert result.exit_code == 0, result.output
        steps[gb_per_s] = [cell["step_s"] for cell in json.loads(result.output)["cells"]]
    assert steps[1.0][0] == steps[0.1][0] == pytest.approx(0.00164, rel=0.03)
    # A ring of two sends every gradient once, at 0.74 to 0.92 of the rate; little of it hides behind 1 ms of computing.
    sent = 4 * (1024 + 262144 + 10000)
    longer = (steps[0.1][1] - steps[1.0][1]) / (sent * (1 / 0.1e9 - 1 / 1e9))
    assert 1 / 0.92 < longer < 1 / 0.74
