"""Host agent that runs commands on this machine (`local`) or through ssh. The commands are the same in both cases.

A host needs a POSIX shell (through ssh also as the login shell), find, sed, grep and stat, and NVIDIA's tools if it has GPUs.
GPUs
are those of NVIDIA, drives are NVMe drives on PCI, and network cards are PCI functions with an interface, one per port. Each
listing is one command, so it costs one connection. Commands that change a host or list the users of a device run as root through
`sudo`, because only root sees the open files of other users.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from campaign.common.errors import ConfigError, FabricError
from campaign.common.processes.command import TIMED_OUT, run_command
from campaign.fabrics.host_agents import AgentOptions, drain, parse
from campaign.fabrics.host_agents.drain import Done, RunCommand, Terms, script
from campaign.fabrics.host_agents.protocol import HostDevice
from campaign.spec.hardware import normal

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_SSH_FAILED = 255
# Printed last: ssh and what stands for it have exit codes of their own, 0 and 255 among them.
_PROOF = ("sh", "-c", '"$@"; printf "\\ncampaign-ended %s\\n" "$?"', "campaign-command")
_ENDED = re.compile(r"\ncampaign-ended (\d+)\n")


def open_agent(options: AgentOptions, *, root: Path = Path("/"), processes: Path = Path("/proc")) -> ShellAgent:
    """Open an agent that runs commands on hosts.

    Raises ConfigError if a command for ssh has no `{host}`.

    Args:
        options: options of the agent.
        root: root directory of a host's file system; other values than the default are for tests.
        processes: path of its /proc; other values than the default are for tests.
    """
    if options.kind == "ssh" and not any("{host}" in word for word in options.command):
        raise ConfigError(
            f"agent: command: {shlex.join(options.command)!r} has no {{host}}; give one such as "
            "[ssh, -o, BatchMode=yes, '{host}']"
        )
    terms = Terms(
        options.sudo,
        options.virtual_machine,
        options.detach_s,
        options.look_s,
        root="" if root == Path("/") else str(root),
        processes=str(processes),
    )
    return ShellAgent(through(options.command) if options.kind == "ssh" else run_here, terms)


class ShellAgent:
    """Host agent that runs commands on hosts; see `protocol.HostAgent`."""

    def __init__(self, run: RunCommand, terms: Terms) -> None:
        self._run, self._terms = run, terms

    def devices(self, host: str) -> tuple[HostDevice, ...]:
        """Return the devices that a host lists now. Raises FabricError if they cannot be listed."""
        done = self._run(host, script("look", self._terms.root), self._terms.look_s)
        try:
            return parse.devices(done.out)
        except (FabricError, ValueError) as error:
            raise FabricError(f"{host}: its devices cannot be listed: {error}; {done.err.strip()[:300]}") from error

    def rescan(self, host: str) -> None:
        """Make the kernel of a host scan the PCI bus. Raises FabricError if the command fails."""
        file = f"{self._terms.root}/sys/bus/pci/rescan"
        command = (*self._terms.sudo, "sh", "-c", 'echo 1 > "$1"', "campaign-rescan", file)
        done = self._run(host, command, self._terms.look_s)
        if done.code != 0:
            raise FabricError(
                f"{host}: `echo 1 > {file}` ended with {done.code}: {done.words}; check `sudo` of the agent's options"
            )

    def detach(self, host: str, devices: Sequence[HostDevice], *, force: bool = False) -> None:
        """Remove devices from the bus of their host. Devices that the host no longer has are skipped."""
        if devices:
            seen = self.devices(host)
            there = [found for device in devices if (found := _still(device, seen)) is not None]
            drain.detach(self._run, self._terms, host, there, force=force)

    def close(self) -> None:
        """Do nothing, because no connection is kept open."""


def _still(device: HostDevice, seen: Sequence[HostDevice]) -> HostDevice | None:
    """Return the device at its present location, or None if the host no longer has it.

    Another device may have taken its address. A GPU without a driver has no identity and is found by its address.
    """
    for one in seen:
        if device.identity and one.identity and normal(one.identity) == normal(device.identity):
            return one
    nameless = (one for one in seen if not (one.identity and device.identity))
    at = normal(device.address)
    return next((one for one in nameless if at and one.kind == device.kind and normal(one.address) == at), None)


def run_here(host: str, command: Sequence[str], timeout_s: float) -> Done:
    """Run a command on this machine.

    Raises FabricError if there is no such program, or if it does not end within `timeout_s` seconds.
    """
    try:
        done = run_command(command, timeout_s)
    except OSError as error:
        raise FabricError(f"{host}: {command[0]} cannot be run: {error.strerror or error}") from error
    if done.code == TIMED_OUT:
        raise FabricError(
            f"{host}: `{_short(command)}` did not end within {timeout_s:g} s (look_s); check whether the host or a driver hangs"
        )
    return Done(*done)


def through(template: Sequence[str]) -> RunCommand:
    """Return a function that runs commands on remote hosts.

    It runs `template`, with `{host}` replaced by the host, followed by the command as one quoted word.
    """

    def run(host: str, command: Sequence[str], timeout_s: float) -> Done:
        """Run a command on a host through `template`. Raises FabricError if the host cannot be reached."""
        if not _HOST.fullmatch(host):
            raise FabricError(
                f"host {host!r} is not a valid name for ssh; allowed are letters, digits and, inside the name, . _ -"
            )
        words = [word.replace("{host}", host) for word in template]
        done = run_here(host, [*words, shlex.join((*_PROOF, *command))], timeout_s)
        if endings := list(_ENDED.finditer(done.out)):
            return Done(int(endings[-1][1]), done.out[: endings[-1].start()], done.err)
        if done.code == _SSH_FAILED:
            raise FabricError(
                f"{host}: cannot be reached by `{shlex.join(words)}`: {done.words}; it must log in without a password (BatchMode)"
            )
        raise FabricError(
            f"{host}: `{shlex.join(words)}` ended with {done.code}, but the command did not end on the host: {done.words}; "
            "check that it runs the command that it is given"
        )

    return run


def _short(command: Sequence[str]) -> str:
    """Format a command without the text of a script."""
    return shlex.join(word if "\n" not in word else "..." for word in command)
