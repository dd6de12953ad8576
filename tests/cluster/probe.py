"""What emulated hosts do to real traffic, as a program: so that the same is asked as root and as somebody else.

    python -m tests.cluster.probe stream SPECS.json [FROM TO BYTES]..
    python -m tests.cluster.probe steps SPECS.json
    python -m tests.cluster.probe bytes SPECS.json

stream: what one TCP stream after the other moves between two ranks of the one specification; steps: seconds of each step of a short
training run over all ranks of each; bytes: what the first host sends in a step of training, as its link counts them and as the
result says of a rank. SPECS.json: a list of emulated hosts. Prints JSON: {"mode", "gbit_per_s"}, a list for each stream; {"mode",
"step_times_s"}, a list for each of SPECS; or {"bytes"}.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from campaign.common.processes.marked import adopt_orphans
from campaign.emulators.hosts.network import EmulatedHosts, emulate_hosts
from campaign.emulators.hosts.topology import EmulationSpec

_PORT = 29511
_FEW_STEPS, _MORE_STEPS = 2, 12
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


def stream_gbit_per_s(emulation: EmulatedHosts, sender: int, receiver: int, size: int) -> float:
    words = [emulation.get_rank_address(receiver), str(_PORT), str(size)]
    receiving = subprocess.Popen(
        [*prefix(emulation, receiver), sys.executable, "-c", _RECEIVE, *words], stdout=subprocess.PIPE, text=True
    )
    assert receiving.stdout is not None
    assert receiving.stdout.readline() == "ready\n"
    subprocess.run([*prefix(emulation, sender), sys.executable, "-c", _SEND, *words], check=True, timeout=30)
    printed, _ = receiving.communicate(timeout=30)
    return float(printed) * 8 / 1e9


def prefix(emulation: EmulatedHosts, rank: int) -> tuple[str, ...]:
    """The argv to put before a command that is to run where a rank does."""
    return emulation.held_namespaces.build_command_prefix(emulation.rank_namespaces[rank])


def sent_bytes(emulation: EmulatedHosts, rank: int) -> int:
    """Bytes that a rank's host or device has sent over its link so far."""
    words = [*prefix(emulation, rank), "ip", "-json", "-stats", "link", "show", "eth0"]
    (link,) = json.loads(subprocess.run(words, capture_output=True, check=True, timeout=30).stdout)
    return int(link["stats64"]["tx"]["bytes"])


class Ranks:
    """The parent that ranks are forked from, so that torch is imported once for all of them (protocol: `forkserver`)."""

    def __init__(self) -> None:
        adopt_orphans()
        self.parent = subprocess.Popen(
            [sys.executable, "-m", "campaign.workloads.trainer.forkserver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert "import_s" in self._answer()

    def step_times_s(self, emulation: EmulatedHosts, directory: Path) -> list[float]:
        spec = {"model": "bert-nano", "batch": 4, "warmup_steps": 2, "measured_steps": 8}
        times: list[float] = self.train(emulation, directory, spec)["step_times_s"]
        return times

    def step_bytes(self, emulation: EmulatedHosts, directory: Path) -> dict[str, float]:
        """`sent` by the first host's link, and by one rank (`of_rank`)."""
        spec = {"model": "gpt-nano", "batch": 4, "warmup_steps": 1}
        sent = []
        for steps in (_FEW_STEPS, _MORE_STEPS):
            before = sent_bytes(emulation, 0)
            result = self.train(emulation, directory, {**spec, "measured_steps": steps})
            sent.append(sent_bytes(emulation, 0) - before)
        of_rank = result["communication_bytes_per_step"]
        return {"sent": (sent[1] - sent[0]) / (_MORE_STEPS - _FEW_STEPS), "of_rank": of_rank}

    def train(self, emulation: EmulatedHosts, directory: Path, spec: dict[str, Any]) -> dict[str, Any]:
        """The result of rank 0."""
        (directory / "spec.json").write_text(json.dumps(spec))
        world = len(emulation.rank_namespaces)
        log = directory / "log"
        shared = {
            **os.environ,
            "WORLD_SIZE": str(world),
            "MASTER_PORT": str(_PORT),
            "OMP_NUM_THREADS": "1",
            "CAMPAIGN_SPEC": str(directory / "spec.json"),
            "CAMPAIGN_OUT": str(directory),
        }
        ranks = [
            {
                "env": {**shared, **_environment(emulation, rank), "RANK": str(rank)},
                "log": str(log),
                "namespaces": emulation.list_namespace_paths(rank),
            }
            for rank in range(world)
        ]
        assert self.parent.stdin
        self.parent.stdin.write(json.dumps({"ranks": ranks, "cwd": str(directory)}) + "\n")
        self.parent.stdin.flush()
        assert [os.waitpid(pid, 0)[1] for pid in self._answer()["pids"]] == [0] * world, log.read_text()
        result: dict[str, Any] = json.loads((directory / "rank0.json").read_text())
        return result

    def _answer(self) -> dict[str, Any]:
        assert self.parent.stdout
        answer: dict[str, Any] = json.loads(self.parent.stdout.readline())
        return answer


def _environment(emulation: EmulatedHosts, rank: int) -> dict[str, str]:
    alone = len(set(emulation.rank_namespaces)) == 1
    host = emulation.rank_namespaces[rank].partition("-fabric")[0]
    return {
        "LOCAL_RANK": str(sum(place.partition("-fabric")[0] == host for place in emulation.rank_namespaces[:rank])),
        "MASTER_ADDR": "127.0.0.1" if alone else emulation.get_rank_address(0),
        "GLOO_SOCKET_IFNAME": "lo" if alone else "eth0",
    }


def main(what: str, file: str, *words: str) -> None:
    specs = [EmulationSpec.model_validate(each) for each in json.loads(Path(file).read_text())]
    answer: dict[str, object] = {"user": os.getuid(), "host": socket.gethostname()}
    if what == "stream":
        (spec,) = specs
        with emulate_hosts(spec) as emulation:
            answer["mode"] = emulation.mode
            streams = [[int(word) for word in words[first : first + 3]] for first in range(0, len(words), 3)]
            answer["gbit_per_s"] = [stream_gbit_per_s(emulation, *stream) for stream in streams]
    elif what == "bytes":
        (spec,) = specs
        with emulate_hosts(spec) as emulation, tempfile.TemporaryDirectory() as directory:
            answer["bytes"] = Ranks().step_bytes(emulation, Path(directory))
    else:
        ranks, times = Ranks(), []
        for spec in specs:
            with emulate_hosts(spec) as emulation, tempfile.TemporaryDirectory() as directory:
                answer["mode"] = emulation.mode
                times.append(ranks.step_times_s(emulation, Path(directory)))
        answer["step_times_s"] = times
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
