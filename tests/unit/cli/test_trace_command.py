"""`campaign workload trace`, as a person types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from campaign.cli.main import main
from campaign.launch.local import LocalLauncher
from campaign.run.try_workload import find_workload
from campaign.workloads.protocol import Ended, Step
from campaign.workloads.replay import ReplayWorkload

DATA = Path(__file__).parents[2] / "data" / "chakra"
PUBLISHED = ("--device-model=t4", "--batch=6", "--precision=fp16", "--samples-per-s=30", "--source=page 3")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trace(*words: str) -> Result:
    result = CliRunner().invoke(main, ["workload", "trace", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def refused(*words: str) -> str:
    result = trace(*words)
    assert result.exit_code != 0
    return " ".join(result.output.split())


def test_a_published_rate_becomes_a_file_and_further_ones_are_added(here: Path) -> None:
    file = here / "nano-t4.yaml"
    done = trace("bert-nano", *PUBLISHED, "-o", "nano-t4.yaml")
    assert done.output == "nano-t4.yaml: 6 layers with 724,994 parameters; t4 fp16 batch 6: 0.2 s a step\n"
    more = ("--device-model=a100", "--batch=12", "--precision=bf16", "--step-s=0.1", "--source=page 4")
    assert trace("bert-nano", *more, "--add-to", "nano-t4.yaml").exit_code == 0
    made = find_workload(str(file)).model
    assert isinstance(made, ReplayWorkload)
    assert [(row.device, row.batch, row.seconds) for row in made.compute] == [("t4", 6, 0.2), ("a100", 12, 0.1)]
    assert "seq_len 16" in made.description
    assert "has a row for a100, bf16, batch 12" in refused("bert-nano", *more, "--add-to", "nano-t4.yaml")
    assert "nano-t4.yaml exists; name a new file" in refused("bert-nano", *PUBLISHED, "-o", "nano-t4.yaml")


def test_without_a_file_the_trace_is_printed_alone() -> None:
    printed = trace("bert-nano", *PUBLISHED, "--option", "seq_len=32")
    assert printed.output.startswith("name: bert-nano-trace\nkind: replay\n")
    assert "seq_len 32" in printed.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            (*PUBLISHED, "--step-s=1"),
            "--samples-per-s, --step-s are several ways to say how long a step takes; give one",
        ),
        (
            ("--source=page 3",),
            "--source is not for a run; leave it out, or give a public number (--samples-per-s, --step-s",
        ),
        ((*PUBLISHED, "--steps=3"), "--steps is not for a public number (--samples-per-s), with which nothing is run"),
        ((*PUBLISHED[:3], "--source=x", "--samples-per-s=inf"), "Invalid value for '--samples-per-s'"),
        ((*PUBLISHED, "--optimizer-pct=nan"), "Invalid value for '--optimizer-pct'"),
        ((*PUBLISHED[:3], "--source=x", "--step-s=1e99"), "a step of 1e+99 s is no time that can be replayed"),
        (("--precision=tf32",), "tf32 is a mode of NVIDIA's tensor cores"),
        (("--option", "compile=true"), "a compiled model has no layers; trace it with --option compile=false"),
        (("--batch=2,x",), "'x' is not a valid integer"),
        (
            ("--samples-per-s=30",),
            "--samples-per-s is of one device, precision and batch; also give --device-model, --precision, --batch, --s",
        ),
        ((*PUBLISHED, "--batch=6,8"), "one --precision and one --batch; add the others with --add-to"),
        ((*PUBLISHED, "--batch=0"), "Invalid value for '--batch'"),
        ((*PUBLISHED, "--device-model=a b"), "--device-model: 'a b' is not a name; names have letters"),
        ((*PUBLISHED, "-o", "trace.json"), "a workload file ends with .yaml; name it trace.yaml"),
        ((*PUBLISHED, "-o", "a b.yaml"), "--output: 'a b' is not a name"),
        ((*PUBLISHED, "-o", "a.yaml", "--add-to", "b.yaml"), "give one of them"),
        ((*PUBLISHED, "--option", "image_px=3"), "bert-nano has no option 'image_px'"),
    ],
)
def test_what_does_not_fit_is_said(words: tuple[str, ...], says: str) -> None:
    assert says in refused("bert-nano", *words)


def test_a_chakra_trace_becomes_a_file_and_what_is_left_out_is_said() -> None:
    pytest.importorskip("google.protobuf")
    options = ("--device-model=a100", "--precision=fp32", "--batch=8", "-o", "gpu.yaml")
    done = trace(str(DATA / "gpu.0.et"), *options)
    assert "gpu.yaml: 2 layers with 6,815,744 parameters; a100 fp32 batch 8: 0.0024 s a step" in done.output
    assert "not in the trace: 1 BROADCAST (ncclDevKernel_Broadcast)" in " ".join(done.output.split())
    assert find_workload("gpu.yaml").model.name == "gpu"
    assert "also give --device-model, --precision, --batch" in refused(str(DATA / "gpu.0.et"))
    assert "--option is not for a Chakra execution trace" in refused(str(DATA / "gpu.0.et"), "--option", "seq_len=3")
    assert "none.et: cannot be read" in refused("none.et", *options[:3])


def test_a_run_on_this_machine_becomes_a_file(here: Path) -> None:
    words = (
        "--batch=2",
        "--steps=4",
        "--warmup=1",
        "--device-model=core",
        "--option",
        "accumulation=2",
        "-o",
        "nano.yaml",
    )
    done = trace("bert-nano", *words)
    assert "nano.yaml: 6 layers with 724,994 parameters; core fp32 batch 2: " in done.output
    made = find_workload("nano.yaml").model
    assert isinstance(made, ReplayWorkload)
    assert [layer.repeat for layer in made.layers] == [1, 1, 1, 2, 1]
    # Shares are milliseconds of the step.
    assert made.total_share == pytest.approx(1e3 * made.compute[0].seconds, rel=1e-3)
    assert (made.input_bytes, made.options) == (16 * 8 * 2 + 2 * 8, {"accumulation": 2})
    assert made.compute[0].source.endswith(
        "campaign workload trace bert-nano --batch 2 --precision fp32 --option accumulation=2"
    )


def test_a_system_with_a_pace_is_traced_at_that_pace(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rank is started with; whether it holds the pace is the trainer's tests."""
    devices = {"devices": {"slow": {"runs_on": "cpu"}}, "emulation": {"pace": {"slow": {"fp32": 0.5, "bf16": 1}}}}
    hosts = [{"name": "h1", "cores": 2, "devices": [{"model": "slow", "count": 1}]}]
    system = {"name": "paced", "fabric": {"kind": "simulated"}, "hosts": hosts, **devices}
    (here / "paced.yaml").write_text(yaml.safe_dump(system))
    started: list[dict[str, Any]] = []

    def launch(step: Step, directory: Path) -> Ended:
        started.append(json.loads(Path(step.environment["CAMPAIGN_SPEC"]).read_text()))
        return Ended((1,), 0.0, 1.0)

    monkeypatch.setattr(LocalLauncher, "run", lambda _, step, __, log, directory, ___: launch(step, directory))
    refused("bert-nano", "--system=paced.yaml", "--precision=bf16")
    assert [(spec["pace_gflops"], spec["times_layers"]) for spec in started] == [([1.0], True)]
