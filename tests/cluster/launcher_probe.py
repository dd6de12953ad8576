"""The local launcher on emulated hosts, as a program: so that the same is asked as root and as somebody else.

    python -m tests.cluster.launcher_probe WHAT

prints JSON: what `WHAT` (a function below) gives, with how links are emulated under `emulated` and who asked under `user`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from campaign.common.errors import LaunchError
from campaign.common.processes.marked import find_marked_processes
from campaign.run.local_launcher import LocalLauncher
from campaign.spec.hardware import Composition
from campaign.workloads.launcher import StepLimits
from campaign.workloads.protocol import Step, StepEnd
from tests.unit.run.launch.compositions import composition, emulated_system

_MARK = f"launcher-probe-{os.getpid()}/"
_LIMITS = StepLimits(60.0)
_SHOW = """
import json, os
print(json.dumps([int(os.environ["RANK"]), os.stat("/proc/self/ns/net").st_ino, os.getpid()]), flush=True)
"""
_STREAM = """
import os, socket, time
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "1":
    for _ in range(100):
        try:
            stream = socket.create_connection(place, 5)
        except OSError:
            time.sleep(0.05)
        else:
            break
    stream.sendall(bytes({size}))
    stream.close()
else:
    stream, _ = socket.create_server(place).accept()
    # The first part fills buckets and queues on the way; only the rest moves at the rate of the link.
    skipped = 0
    while skipped < {size} // 4:
        skipped += len(stream.recv(1 << 16))
    started_s, received = time.monotonic(), 0
    while part := stream.recv(1 << 16):
        received += len(part)
    print(received * 8e-9 / (time.monotonic() - started_s), flush=True)
"""


class Bench:
    """A launcher on a composition, with a directory of its own."""

    def __init__(self, directory: Path, *shape: tuple[int, int]) -> None:
        self.directory = directory
        self.log = directory / "log"
        self.composition: Composition = composition(*shape)
        self.launcher: LocalLauncher = LocalLauncher(emulated_system(), self.composition)

    def run(
        self, argv: tuple[str, ...], limits: StepLimits = _LIMITS, preload: str | None = None, **env: str
    ) -> StepEnd:
        ranks = {host.name: len(host.devices) for host in self.composition.hosts}
        step = Step(argv, env, ranks, preload=preload)
        return self.launcher.run(step, f"{_MARK}run", self.log, self.directory, limits)

    def python(self, code: str, **keys: Any) -> StepEnd:
        return self.run((sys.executable, "-S", "-c", code), **keys)

    def train(self, **keys: Any) -> StepEnd:
        spec = {"model": "bert-nano", "batch": 1, "warmup_steps": 1, "measured_steps": keys.pop("steps", 3)}
        (self.directory / "spec.json").write_text(json.dumps({**spec, "options": {"seq_len": 4}}))
        files = {"CAMPAIGN_SPEC": str(self.directory / "spec.json"), "CAMPAIGN_OUT": str(self.directory)}
        return self.run(("not started",), preload="campaign.workloads.trainer", **files, **keys)

    def errors(self, *argv: str) -> str:
        try:
            self.run(argv)
        except LaunchError as error:
            return str(error)
        return "no error"


def places(directory: Path) -> dict[str, Any]:
    """Namespaces of the ranks of (two local, one fabric) and (one local), and of this program."""
    bench = Bench(directory, (2, 1), (1, 0))
    codes = bench.python(_SHOW).codes
    found = sorted(json.loads(line) for line in bench.log.read_text().splitlines())
    bench.launcher.close()
    return {"codes": codes, "spaces": [space for _, space, _ in found], "own": Path("/proc/self/ns/net").stat().st_ino}


def rates(directory: Path) -> dict[str, Any]:
    """Gbit/s of a stream between two local devices, over the network, and through the fabric."""
    answer = {}
    for name, shape, size in (
        ("local", [(2, 0)], 200_000_000),
        ("network", [(1, 0), (1, 0)], 20_000_000),
        ("fabric", [(1, 1)], 10_000_000),
    ):
        bench = Bench(directory, *shape)
        bench.log.unlink(missing_ok=True)
        bench.python(_STREAM.format(size=size))
        answer[name] = float(bench.log.read_text())
        bench.launcher.close()
    return answer


def training(directory: Path) -> dict[str, Any]:
    """A run with ranks forked from the parent that has torch, and what is left after one is stopped at its limit."""
    bench = Bench(directory, (1, 1), (1, 0))
    ended = bench.train()
    statuses = [json.loads((directory / f"rank{rank}.json").read_text())["status"] for rank in range(3)]
    stopped = bench.train(steps=1_000_000, limits=StepLimits(3.0))
    hungry = bench.train(steps=1_000_000, limits=StepLimits(30.0, memory_limit_mib=20))
    bench.launcher.close()
    left = list(find_marked_processes(_MARK))
    return {
        "codes": ended.codes,
        "statuses": statuses,
        "stopped": [stopped.timed_out, *stopped.codes],
        "hungry": hungry.memory_limit_hit,
        "left": left,
    }


def failing(directory: Path) -> dict[str, Any]:
    """Programs that cannot be started, one that is stopped at its limit, and hosts that go away."""
    bench = Bench(directory, (1, 0), (1, 0))
    absent, forbidden = bench.errors("no-such-program"), bench.errors("/etc/passwd")
    stopped = bench.python("import time; time.sleep(60)", limits=StepLimits(0.5))
    keeper = int(bench.launcher._places.place_processes(Step((), {}, {"host1": 1}))[0].namespaces[-1].split("/")[2])
    os.kill(keeper, signal.SIGKILL)
    os.waitpid(keeper, 0)
    gone = bench.errors("true")
    bench.launcher.close()
    return {
        "absent": absent,
        "forbidden": forbidden,
        "stopped": [stopped.timed_out, *stopped.codes],
        "left": list(find_marked_processes(_MARK)),
        "gone": gone,
    }


def main(what: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        bench = Bench(directory, (1, 0))
        links = bench.launcher.links or {}
        bench.launcher.close()
        asked = {"places": places, "rates": rates, "training": training, "failing": failing}[what](directory)
    print(json.dumps({"emulated": links["emulated"], "user": os.getuid(), **asked}))


if __name__ == "__main__":
    main(*sys.argv[1:])
