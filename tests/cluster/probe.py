"""What emulated hosts do to real traffic, as a program: so that the same is asked as root and as somebody else.

    python -m tests.cluster.probe stream SPEC.json FROM TO     bytes a second that one TCP stream moves between two ranks
    python -m tests.cluster.probe steps SPEC.json              seconds of each step of a short training run over all ranks

prints JSON: {"mode", "gbit_per_s" | "step_times_s"}.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from campaign.cluster.network import Emulation, emulated
from campaign.cluster.topology import EmulationSpec

_PORT = 29511
_RECEIVE = """
import socket, sys, time
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
stream, _ = server.accept()
size = int(sys.argv[3])
# The first part fills buckets and queues on the way; only the rest moves at the rate of the link.
skipped = 0
while skipped < size // 4:
    skipped += len(stream.recv(1 << 16))
started_s, received = time.monotonic(), 0
while part := stream.recv(1 << 16):
    received += len(part)
print(received / (time.monotonic() - started_s))
"""
_SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as stream:
    stream.sendall(bytes(int(sys.argv[3])))
"""


def stream_gbit_per_s(emulation: Emulation, sender: int, receiver: int, size: int) -> float:
    words = [emulation.address(receiver), str(_PORT), str(size)]
    receiving = subprocess.Popen(
        [*emulation.prefix(receiver), sys.executable, "-c", _RECEIVE, *words], stdout=subprocess.PIPE, text=True
    )
    assert receiving.stdout is not None
    assert receiving.stdout.readline() == "ready\n"
    subprocess.run([*emulation.prefix(sender), sys.executable, "-c", _SEND, *words], check=True, timeout=30)
    printed, _ = receiving.communicate(timeout=30)
    return float(printed) * 8 / 1e9


def step_times_s(emulation: Emulation, directory: Path) -> list[float]:
    spec = {"model": "bert-nano", "batch": 4, "warmup_steps": 2, "measured_steps": 8}
    (directory / "spec.json").write_text(json.dumps(spec))
    world = len(emulation.places)
    ranks = []
    for rank in range(world):
        place = {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_PORT": str(_PORT), "OMP_NUM_THREADS": "1"}
        files = {
            "CAMPAIGN_SPEC": str(directory / "spec.json"),
            "CAMPAIGN_OUT": str(directory),
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        ranks.append(
            subprocess.Popen(
                [*emulation.prefix(rank), sys.executable, "-m", "campaign.train.rank"],
                env={**os.environ, **emulation.environment(rank), **place, **files},
            )
        )
    assert [rank.wait(120) for rank in ranks] == [0] * world
    times: list[float] = json.loads((directory / "rank0.json").read_text())["step_times_s"]
    return times


def main(what: str, spec: str, *words: str) -> None:
    with emulated(EmulationSpec.model_validate_json(Path(spec).read_bytes())) as emulation:
        answer: dict[str, object] = {"mode": emulation.rates().mode, "user": os.getuid(), "host": socket.gethostname()}
        if what == "stream":
            answer["gbit_per_s"] = stream_gbit_per_s(emulation, int(words[0]), int(words[1]), int(words[2]))
        else:
            with tempfile.TemporaryDirectory() as directory:
                answer["step_times_s"] = step_times_s(emulation, Path(directory))
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
