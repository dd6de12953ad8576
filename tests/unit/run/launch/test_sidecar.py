"""The step of Slurm that stands beside the runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from campaign.slurm.sidecar import build_sidecar_argv, run_slurm_sidecar


def argv(*words: str, looks_at_devices: bool = False) -> list[str]:
    hosts = ["host1", "host2"]
    return build_sidecar_argv(words, hosts, Path("/d%"), Path("/d%/step"), sees_devices=looks_at_devices)


def test_it_shares_everything_and_holds_nothing() -> None:
    found = argv("sampler")
    assert found[0] == "srun"
    assert {"--overlap", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--mem=0", "--gres=none"} <= set(found)
    assert "--output=/d%%/%N.log" in found
    assert not [word for word in argv("sampler", looks_at_devices=True) if word.startswith("--gres")]


@pytest.mark.parametrize("word", ["{host}", "--out=/a b/{host}.x", "it's {host} and {host}", "$HOME", "", "*"])
def test_words_are_the_hosts_and_nobody_elses(word: str, tmp_path: Path) -> None:
    script = build_sidecar_argv(("printf", "%s|", word), ["h"], tmp_path, tmp_path / "a step", sees_devices=False)[-1]
    surroundings = {"SLURMD_NODENAME": "host7", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "2", "PATH": "/usr/bin:/bin"}
    told = subprocess.run(["/bin/sh", "-c", script], env=surroundings, capture_output=True, text=True, check=True)
    assert told.stdout == f"{word.replace('{host}', 'host7')}|"
    assert (tmp_path / "a step").read_text() == "1.2\n"


def test_where_there_is_no_srun_nothing_stands_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with run_slurm_sidecar(("x",), ["host1"], {"PATH": str(tmp_path)}, tmp_path, sees_devices=False) as hosts:
        assert hosts == ()
