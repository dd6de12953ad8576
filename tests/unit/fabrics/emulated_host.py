"""A host below a directory: sysfs, /proc and /dev as files, NVIDIA's tools and modprobe as small programs, and what a kernel does.

The programs keep their state in the same files, and refuse what the real ones refuse. What a driver would not survive is a `wound`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from campaign.fabrics.host_agents.drain import HostCommandResult, HostSettings, RunCommand
from campaign.fabrics.host_agents.protocol import HostDevice
from campaign.fabrics.host_agents.shell import ShellAgent, run_locally

MODULES = ("nvidia_drm", "nvidia_modeset", "nvidia_uvm")
LINK = {
    "current_link_width": "16",
    "max_link_width": "16",
    "current_link_speed": "16.0 GT/s PCIe",
    "max_link_speed": "16.0 GT/s PCIe",
}

_NVIDIA_SMI = r"""#!/bin/sh
cd "$STATE" || exit 99
[ -e unloaded ] && { echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."; exit 9; }
low() { printf %s "$1" | tr A-F a-f; }
of() { for g in gpus/*; do [ "${g#gpus/}" = "$(low "$1")" ] || grep -qs "^$1," "$g/row" && echo "$g"; done; }
case "$*" in
    --query-gpu=uuid*)
        shown=
        for g in gpus/*; do [ -d "$g" ] && [ ! -e "$g/draining" ] && cat "$g/row" && shown=1; done
        [ -n "$shown" ] || { echo "No devices were found"; exit 6; } ;;
    "-i "*)
        g=$(of "$2")
        [ -n "$g" ] && [ ! -e "$g/draining" ] || { echo "No devices were found"; exit 6; }
        case "$3 $4" in
            "-pm 0") unlink "$g/persistent" ;;
            --query-gpu=persistence_mode*) if [ -e "$g/persistent" ]; then echo Enabled; else echo Disabled; fi ;;
            --query-compute-apps=*) cat "$g/apps" ;;
            *) exit 2 ;;
        esac ;;
    "drain -p "*)
        g=$(of "$3")
        [ -n "$g" ] || { echo "Failed to find GPU $3"; exit 3; }
        case "$4 $5" in
            "-q ")
                if [ -e "$g/draining" ]; then is=draining; else is="not draining"; fi
                echo "The current drain state of GPU 0000$3 is: $is." ;;
            "-m 1")
                [ -e undrainable ] && { echo "Unable to modify drain state: Not Supported"; exit 3; }
                [ -e "$g/persistent" ] && echo "drained with persistence on: $3" >> wounds
                touch "$g/draining" ;;
            "-r ")
                [ -e virtual ] && { echo "Operation not supported"; exit 3; }
                [ -e "$g/draining" ] || { echo "GPU $3 is not in drain state"; exit 3; }
                [ "$(ls gpus | wc -l)" -gt 1 ] || echo "the driver took off its last GPU: $3" >> wounds
                touch "$g/leaves" ;;
            *) exit 2 ;;
        esac ;;
    *) echo "unknown: $*"; exit 2 ;;
esac
"""
_MODPROBE = r"""#!/bin/sh
[ "$1" = -r ] || exit 2
[ -e "$STATE/keep/$2" ] && { echo "modprobe: FATAL: Module $2 is in use." >&2; exit 1; }
rm -rf "$ROOT/sys/module/$2"
[ -n "$(ls "$ROOT/sys/module")" ] && exit 0
# Nothing needs the driver itself any more: modprobe takes it as well, and with it what it knew of the GPUs.
touch "$STATE/unloaded"
rm -rf "$ROOT/proc/driver/nvidia"
for gpu in "$STATE"/gpus/*; do rm -f "$ROOT/sys/bus/pci/devices/${gpu##*/}/driver"; done
"""


class Stopped(BaseException):
    """The process that ran the commands was killed."""


class EmulatedHost:
    """`run` is a detach.Run; `changes`: what it was told to change, in short words; it dies before change `dies_at`, from 0."""

    def __init__(self, directory: Path, *, virtual: bool = False) -> None:
        self.root, self.state, self.bin = directory / "root", directory / "state", directory / "bin"
        self.processes = directory / "processes"
        self.changes: list[str] = []
        self.dies_at: int | None = None
        self.way: RunCommand = run_locally
        for path in (self.state / "gpus", self.state / "keep", self.bin, self.processes, self.root / "dev"):
            path.mkdir(parents=True)
        (self.root / "sys/bus/pci/devices").mkdir(parents=True)
        self.write("sys/bus/pci/rescan", "")
        if virtual:
            (self.state / "virtual").touch()
        for module in MODULES:
            (self.root / "sys/module" / module).mkdir(parents=True)
        for name, text in (("nvidia-smi", _NVIDIA_SMI), ("modprobe", _MODPROBE)):
            program = self.bin / name
            program.write_text(text.replace("$STATE", str(self.state)).replace("$ROOT", str(self.root)))
            program.chmod(0o755)

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def function(self, address: str, driver: str, **files: str) -> str:
        """A PCI function below a port of its own; gives the path of its directory."""
        path = f"sys/devices/pci0000:00/0000:00:{len(self.functions):02x}.0/{address}"
        for name, text in {"remove": "", **LINK, **files}.items():
            self.write(f"{path}/{name}", f"{text}\n" if text else "")
        for name, text in LINK.items():
            self.write(f"{path}/../{name}", text + "\n")
        (self.root / path / "driver").symlink_to(f"/sys/bus/pci/drivers/{driver}")
        (self.root / "sys/bus/pci/devices" / address).symlink_to(self.root / path)
        return path

    def gpu(self, number: int, *, driver: str = "nvidia") -> str:
        """An A100 with persistence on; gives its UUID."""
        uuid, address = f"GPU-{number:08}-93d4-4f0e-8a61-2b7c9d0e1f23", f"0000:3{number:x}:00.0"
        self.function(address, driver, vendor="0x10de", **{"class": "0x030200"})
        if driver == "nvidia":
            facts = f"Model: \t\t NVIDIA A100\nGPU UUID: \t {uuid}\nDevice Minor: \t {number}\n"
            self.write(f"proc/driver/nvidia/gpus/{address}/information", facts)
            self.write(f"dev/nvidia{number}", "")
            state = self.state / "gpus" / address
            state.mkdir()
            (state / "row").write_text(f"{uuid}, NVIDIA A100, 0000{address.upper()}, 16, 16, 4, 4, P0\n")
            (state / "persistent").touch()
            (state / "apps").touch()
        return uuid

    def drive(self) -> str:
        """An NVMe drive with a partition; gives its serial."""
        path = self.function("0000:5e:00.0", "nvme", vendor="0x144d", **{"class": "0x010802"})
        for name, text in (("serial", "S64ANE0R500123  "), ("model", "SAMSUNG MZQL23T8"), ("nvme0c0n1/x", "")):
            self.write(f"{path}/nvme/nvme0/{name}", text + "\n")
        (self.root / path / "nvme/nvme0/device").symlink_to(self.root / path)
        self._class("nvme", "nvme0", f"{path}/nvme/nvme0")
        for name, number in (("nvme0n1", "259:7770"), ("nvme0n1/nvme0n1p1", "259:7771")):
            self.write(f"sys/devices/virtual/nvme-subsystem/nvme-subsys0/{name}/dev", number + "\n")
        for name in ("nvme0n1", "nvme0n1/nvme0n1p1"):
            self._class("block", Path(name).name, f"sys/devices/virtual/nvme-subsystem/nvme-subsys0/{name}")
            self.write(f"dev/{Path(name).name}", "")
        return "S64ANE0R500123"

    def card(self) -> str:
        """A network card; gives its MAC."""
        path = self.function("0000:86:00.0", "mlx5_core", vendor="0x15b3", device="0x1017", **{"class": "0x020000"})
        self.write(f"{path}/net/eth7/address", "0c:42:a1:00:00:01\n")
        (self.root / path / "net/eth7/device").symlink_to(self.root / path)
        self._class("net", "eth7", f"{path}/net/eth7")
        return "0c:42:a1:00:00:01"

    def _class(self, kind: str, name: str, path: str) -> None:
        link = self.root / "sys/class" / kind / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(self.root / path)

    def process(self, pid: int, command: str, **files: str) -> None:
        """A process in the host's table."""
        directory = self.processes / str(pid)
        (directory / "fd").mkdir(parents=True)
        (directory / "cmdline").write_text(command.replace(" ", "\0") + "\0")
        for name, text in files.items():
            (directory / name).write_text(text)

    def opens(self, pid: int, file: str) -> None:
        (self.processes / str(pid) / "fd/7").symlink_to(self.root / file)

    # -- what is seen ----------------------------------------------------------------------------------------------------------

    @property
    def functions(self) -> list[str]:
        """Addresses on the bus."""
        return sorted(path.name for path in (self.root / "sys/bus/pci/devices").iterdir())

    @property
    def modules(self) -> list[str]:
        return sorted(path.name for path in (self.root / "sys/module").iterdir())

    @property
    def wounds(self) -> list[str]:
        file = self.state / "wounds"
        return file.read_text().splitlines() if file.exists() else []

    def agent(self, *, processes: Path | None = None, sudo: tuple[str, ...] = (), detach_s: float = 0.05) -> ShellAgent:
        virtual = (self.state / "virtual").exists()
        where = str(processes or self.processes)
        return ShellAgent(self.run, HostSettings(sudo, virtual, detach_s, 20, 0.01, str(self.root), where))

    def run(self, host: str, command: Sequence[str], timeout_s: float) -> HostCommandResult:
        words = " ".join(command).replace(str(self.root), "")
        if command[:2] == ("sh", "-c"):
            words = " ".join(command[3:]).replace(str(self.root), "")
        looks = words.startswith(("campaign-look", "campaign-users"))
        if not looks:
            if self.dies_at is not None and len(self.changes) >= self.dies_at:
                raise Stopped
            self.changes.append(words)
        done = self.way(host, command, timeout_s)
        self.settle()
        return done

    def settle(self) -> None:
        """What a kernel does: a function leaves the bus that its `remove` was written to, or that the driver gave up."""
        for address in self.functions:
            file, state = self.root / "sys/bus/pci/devices" / address / "remove", self.state / "gpus" / address
            written = file.is_file() and file.read_text().strip() == "1"
            if written and state.exists():
                if not (state / "draining").exists() and not (self.state / "undrainable").exists():
                    self._wound(f"removed without draining: {address}")
                if len(list((self.state / "gpus").iterdir())) == 1 and self.modules:
                    self._wound(f"removed the last one below {self.modules}")
            if written or (state / "leaves").exists():
                self.leave(address)

    def leave(self, address: str) -> None:
        link = self.root / "sys/bus/pci/devices" / address
        shutil.rmtree(link.resolve())
        link.unlink()
        for path in (self.state / "gpus" / address, self.root / "proc/driver/nvidia/gpus" / address):
            shutil.rmtree(path, ignore_errors=True)

    def _wound(self, words: str) -> None:
        with (self.state / "wounds").open("a") as file:
            file.write(words + "\n")


Hosts = Callable[..., EmulatedHost]


def one(host: EmulatedHost, identity: str) -> HostDevice:
    return next(device for device in host.agent().list_devices("c1") if device.identity == identity)
