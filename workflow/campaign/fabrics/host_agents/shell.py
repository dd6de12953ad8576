"""Host agent that runs commands on this machine (`local`) or through ssh. The commands are the same in both cases.

A host needs a POSIX shell (through ssh also as the login shell), find, sed, grep and stat, and NVIDIA's tools if it has GPUs.
Only GPUs of NVIDIA, NVMe drives on PCI, and network cards (PCI functions with an interface, one per port) are listed. Each
listing is one command, so it costs one connection. Commands that change a host or list the users of a device run as root through
`sudo`, because only root sees the open files of other users.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from campaign.common.errors import ConfigError, FabricError
from campaign.common.processes.command import TIMEOUT_EXIT_CODE, run_command
from campaign.fabrics.host_agents import AgentOptions, drain, parse
from campaign.fabrics.host_agents.drain import HostCommandResult, HostSettings, RunCommand, build_script_command
from campaign.fabrics.host_agents.protocol import HostDevice
from campaign.spec.hardware import normalize_identity

_HOST_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_SSH_ERROR_CODE = 255
# The proof is printed last, because ssh and its substitutes also end with exit codes of their own, such as 0 and 255.
_EXIT_CODE_WRAPPER = ("sh", "-c", '"$@"; printf "\\ncampaign-ended %s\\n" "$?"', "campaign-command")
_EXIT_CODE_LINE = re.compile(r"\ncampaign-ended (\d+)\n")


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
            f"agent: command: {shlex.join(options.command)!r} does not contain {{host}}; use one such as "
            "[ssh, -o, BatchMode=yes, '{host}']"
        )
    settings = HostSettings(
        options.sudo,
        options.virtual_machine,
        options.detach_s,
        options.look_s,
        root="" if root == Path("/") else str(root),
        processes=str(processes),
    )
    return ShellAgent(build_remote_runner(options.command) if options.kind == "ssh" else run_locally, settings)


class ShellAgent:
    """Host agent that runs commands on hosts; see `protocol.HostAgent`."""

    def __init__(self, run: RunCommand, settings: HostSettings) -> None:
        self._run, self._settings = run, settings

    def list_devices(self, host: str) -> tuple[HostDevice, ...]:
        """Return the devices that a host lists now. Raises FabricError if they cannot be listed."""
        result = self._run(host, build_script_command("look", self._settings.root), self._settings.look_s)
        try:
            return parse.parse_devices(result.out)
        except (FabricError, ValueError) as error:
            raise FabricError(
                f"{host}: the devices of the host cannot be listed: {error}; {result.err.strip()[:300]}"
            ) from error

    def rescan(self, host: str) -> None:
        """Make the kernel of a host scan the PCI bus. Raises FabricError if the command fails."""
        file = f"{self._settings.root}/sys/bus/pci/rescan"
        command = (*self._settings.sudo, "sh", "-c", 'echo 1 > "$1"', "campaign-rescan", file)
        result = self._run(host, command, self._settings.look_s)
        if result.code != 0:
            raise FabricError(
                f"{host}: `echo 1 > {file}` ended with exit code {result.code}: {result.summary}; check `sudo` of the agent"
            )

    def detach(self, host: str, devices: Sequence[HostDevice], *, force: bool = False) -> None:
        """Remove devices from the bus of their host. Devices that the host no longer has are skipped."""
        if devices:
            host_devices = self.list_devices(host)
            present = [
                current for device in devices if (current := _find_current_device(device, host_devices)) is not None
            ]
            drain.detach_devices(self._run, self._settings, host, present, force=force)

    def close(self) -> None:
        """Do nothing, because no connection is kept open."""


def _find_current_device(device: HostDevice, host_devices: Sequence[HostDevice]) -> HostDevice | None:
    """Return the device at its current location, or None if the host no longer has it.

    Another device may have taken its address. A GPU without a driver has no identity and is found by its address.
    """
    for candidate in host_devices:
        if (
            device.identity
            and candidate.identity
            and normalize_identity(candidate.identity) == normalize_identity(device.identity)
        ):
            return candidate
    unidentified_devices = (candidate for candidate in host_devices if not (candidate.identity and device.identity))
    address = normalize_identity(device.address)
    return next(
        (
            candidate
            for candidate in unidentified_devices
            if address and candidate.kind == device.kind and normalize_identity(candidate.address) == address
        ),
        None,
    )


def run_locally(host: str, command: Sequence[str], timeout_s: float) -> HostCommandResult:
    """Run a command on this machine.

    Raises FabricError if there is no such program, or if it does not end within `timeout_s` seconds.
    """
    try:
        result = run_command(command, timeout_s)
    except OSError as error:
        raise FabricError(f"{host}: the command {command[0]} cannot be run: {error.strerror or error}") from error
    if result.code == TIMEOUT_EXIT_CODE:
        raise FabricError(
            f"{host}: `{_abbreviate_command(command)}` did not end within "
            f"{timeout_s:g} s (look_s); check whether the host or a driver hangs"
        )
    return HostCommandResult(*result)


def build_remote_runner(template: Sequence[str]) -> RunCommand:
    """Return a function that runs commands on remote hosts.

    It runs `template`, with `{host}` replaced by the host, followed by the command as one quoted word.
    """

    def run_remotely(host: str, command: Sequence[str], timeout_s: float) -> HostCommandResult:
        """Run a command on a host through `template`. Raises FabricError if the host cannot be reached."""
        if not _HOST_PATTERN.fullmatch(host):
            raise FabricError(
                f"host {host!r} is not a valid name for ssh; use letters, digits and, inside the name, the signs . _ -"
            )
        ssh_command = [word.replace("{host}", host) for word in template]
        result = run_locally(host, [*ssh_command, shlex.join((*_EXIT_CODE_WRAPPER, *command))], timeout_s)
        if endings := list(_EXIT_CODE_LINE.finditer(result.out)):
            return HostCommandResult(int(endings[-1][1]), result.out[: endings[-1].start()], result.err)
        if result.code == _SSH_ERROR_CODE:
            raise FabricError(
                f"{host}: `{shlex.join(ssh_command)}` cannot reach the host: {result.summary}; "
                "the command must log in without a password (BatchMode)"
            )
        raise FabricError(
            f"{host}: `{shlex.join(ssh_command)}` ended with exit code {result.code} before the command on the host did: "
            f"{result.summary}; check that `command` of the agent runs its arguments on the host"
        )

    return run_remotely


def _abbreviate_command(command: Sequence[str]) -> str:
    """Format a command for messages, without the text of its script."""
    return shlex.join(word if "\n" not in word else "..." for word in command)
