"""Looking on hosts by commands, here and through ssh: the same answers, and no host is a word of the shell."""

from __future__ import annotations

import os
import re
import select
import shlex
from pathlib import Path

import pytest

from campaign.common.errors import ConfigError, FabricError
from campaign.fabrics.host_agents import AgentOptions, open_agent, shell
from campaign.fabrics.host_agents.drain import HostCommandResult
from campaign.fabrics.host_agents.shell import ShellAgent, build_remote_runner, run_locally
from campaign.spec.hardware import Link
from tests.unit.fabrics.emulated_host import EmulatedHost


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmulatedHost:
    host = EmulatedHost(tmp_path)
    monkeypatch.setenv("PATH", str(host.bin), prepend=os.pathsep)
    return host


@pytest.fixture
def ssh(host: EmulatedHost) -> Path:
    """A program named ssh that writes down its arguments, and has a shell run the command, as the real one's server does."""
    asked = host.state / "ssh"
    program = host.bin / "ssh"
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$#" "$1" "$2" "$3" >> {asked}\n'
        '[ "$3" = down ] && { echo "ssh: connect to host down port 22: Connection refused" >&2; exit 255; }\n'
        'exec sh -c "$4"\n'
    )
    program.chmod(0o755)
    return asked


def test_a_host_with_everything(host: EmulatedHost) -> None:
    uuid, serial, mac = host.gpu(1), host.drive(), host.card()
    seen = host.agent().list_devices("c1")
    assert [(d.kind, d.identity, d.address, d.model, d.ready) for d in seen] == [
        ("gpu", uuid, "0000:31:00.0", "NVIDIA A100", True),
        ("nvme", serial, "0000:5e:00.0", "SAMSUNG MZQL23T8", True),
        ("nic", mac, "0000:86:00.0", "0x15b3:0x1017", True),
    ]
    assert {device.link for device in seen} == {Link(16, 4, 16, 4)}


def test_a_degraded_link_is_seen_against_what_device_and_port_can_do(host: EmulatedHost) -> None:
    path = host.function(
        "0000:5f:00.0", "nvme", current_link_width="2", max_link_width="4", max_link_speed="32.0 GT/s PCIe"
    )
    host.write(f"{path}/nvme/nvme1/serial", "S2\n")
    (host.root / path / "nvme/nvme1/device").symlink_to(host.root / path)
    (host.root / "sys/class/nvme").mkdir(parents=True)
    (host.root / "sys/class/nvme/nvme1").symlink_to(host.root / path / "nvme/nvme1")
    (drive,) = host.agent().list_devices("c1")
    assert drive.link == Link(2, 4, 4, 4)


def test_a_card_in_a_bond_keeps_its_own_address(host: EmulatedHost) -> None:
    host.card()
    host.write("sys/class/net/eth7/address", "aa:aa:aa:aa:aa:aa\n")
    host.write("sys/class/net/eth7/bonding_slave/perm_hwaddr", "0c:42:a1:00:00:01\n")
    assert [device.identity for device in host.agent().list_devices("c1")] == ["0c:42:a1:00:00:01"]


def test_gpus_of_a_host_whose_tool_fails_are_not_missing(host: EmulatedHost) -> None:
    host.gpu(1)
    (host.bin / "nvidia-smi").write_text(
        "#!/bin/sh\necho 'Unable to determine the device handle: GPU is lost'\nexit 15\n"
    )
    with pytest.raises(
        FabricError,
        match=r"c1: the devices of the host cannot be listed: nvidia-smi ended with exit code 15: .*GPU is lost",
    ):
        host.agent().list_devices("c1")


def test_rescan_writes_where_the_kernel_reads(host: EmulatedHost) -> None:
    host.agent().rescan("c1")
    assert (host.root / "sys/bus/pci/rescan").read_text() == "1\n"
    (host.root / "sys/bus/pci/rescan").unlink()
    (host.root / "sys/bus/pci/rescan").mkdir()
    with pytest.raises(FabricError, match=r"c1: `echo 1 > .*/sys/bus/pci/rescan` ended with "):
        host.agent().rescan("c1")


def test_through_ssh_as_here_with_one_connection_a_look(host: EmulatedHost, ssh: Path) -> None:
    host.gpu(1)
    host.gpu(2)
    host.drive()
    options = AgentOptions(kind="ssh", sudo=(), detach_s=0.05)
    agent = shell.open_agent(options, root=host.root, processes=host.processes)
    seen = agent.list_devices("c1.example")
    assert seen == host.agent().list_devices("c1")
    assert ssh.read_text().splitlines() == ["4", "-o", "BatchMode=yes", "c1.example"]
    agent.rescan("c1.example")
    assert (host.root / "sys/bus/pci/rescan").read_text() == "1\n"
    host.way = build_remote_runner(options.command)
    host.agent().detach("c1.example", seen[:1])
    assert (host.functions, host.wounds) == (["0000:32:00.0", "0000:5e:00.0"], [])


def test_arguments_arrive_as_they_were(ssh: Path) -> None:
    run = build_remote_runner(("ssh", "-o", "BatchMode=yes", "{host}"))
    odd = ["a b", "", "$HOME", "`id`", "it's", "x;y", "*", "-n", "line\nbreak"]
    assert run("c1", ["printf", "[%s]", *odd], 9) == HostCommandResult(0, "".join(f"[{word}]" for word in odd))


@pytest.mark.parametrize(
    "name", ["", "-oProxyCommand=x", "c1 id", "c1;id", "$(id)", "c1\n", "a@b", "c1-", "c/1", "`id`", "ü"]
)
def test_what_is_no_host_is_not_given_to_ssh(name: str, ssh: Path) -> None:
    with pytest.raises(FabricError, match=r"is not a valid name for ssh"):
        shell.open_agent(AgentOptions(kind="ssh")).list_devices(name)
    assert not ssh.exists()


def test_a_host_that_cannot_be_reached(ssh: Path) -> None:
    with pytest.raises(
        FabricError, match=r"down: `ssh -o BatchMode=yes down` cannot reach the host: .*Connection refused"
    ):
        shell.open_agent(AgentOptions(kind="ssh")).list_devices("down")


@pytest.mark.parametrize("code", [0, 1, 137, 255])
def test_the_exit_code_of_ssh_proves_nothing(code: int, host: EmulatedHost, ssh: Path) -> None:
    agent = shell.open_agent(AgentOptions(kind="ssh", sudo=()), root=host.root, processes=host.processes)
    program = host.bin / "ssh"
    program.write_text(f"#!/bin/sh\necho nothing was done; exit {code}\n")
    with pytest.raises(
        FabricError, match=r"cannot reach the host|before the command on the host did: nothing was done"
    ):
        agent.rescan("c1")
    assert (host.root / "sys/bus/pci/rescan").read_text() == ""
    # The command ends well, and fails, whatever ssh says afterwards.
    program.write_text(f'#!/bin/sh\nsh -c "$4"; exit {code}\n')
    agent.rescan("c1")
    assert (host.root / "sys/bus/pci/rescan").read_text() == "1\n"
    run = build_remote_runner(("ssh", "-o", "BatchMode=yes", "{host}"))
    assert run("c1", ["sh", "-c", "echo said; exit 255"], 9) == HostCommandResult(255, "said\n")


def test_a_command_without_a_host_is_refused() -> None:
    with pytest.raises(ConfigError, match=re.escape("command: 'ssh gateway' does not contain {host}")):
        open_agent(AgentOptions(kind="ssh", command=("ssh", "gateway")), 1)


def test_the_host_may_stand_within_a_word(ssh: Path) -> None:
    options = AgentOptions(kind="ssh", command=("ssh", "-l", "root", "{host}.mgmt"), sudo=())
    with pytest.raises(FabricError, match=r"its devices cannot be told|/sys/"):
        shell.open_agent(options, root=Path("/no/such/root")).rescan("c1")
    assert ssh.read_text().splitlines() == ["4", "-l", "root", "c1.mgmt"]


def test_what_does_not_end_is_ended_with_what_it_started_and_told(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    words = ["sh", "-c", f"echo begun > {shlex.quote(str(pipe))}; sleep 600 > {shlex.quote(str(pipe))}\n:"]
    with pytest.raises(FabricError, match=r"c1: `sh -c \.\.\.` did not end within 0\.5 s"):
        run_locally("c1", words, 0.5)
    found = b""
    while select.select([reader], [], [], 10)[0] and (part := os.read(reader, 99)):
        found += part
    assert found == b"begun\n"
    assert select.select([reader], [], [], 0)[0], "nobody has the other end any more"
    os.close(reader)


def test_a_program_that_is_not_there_is_told() -> None:
    with pytest.raises(FabricError, match="c1: the command no-such-program cannot be run: No such file"):
        run_locally("c1", ["no-such-program"], 9)


def test_this_machine_shows_its_cards() -> None:
    """Only looks. Whatever the machine has, its cards are those that have a MAC and a PCI function."""
    agent = open_agent(AgentOptions(kind="local"), 1)
    assert isinstance(agent, ShellAgent)
    cards = {device.identity for device in agent.list_devices("here") if device.kind == "nic"}
    real = [path for path in Path("/sys/class/net").glob("*/device") if "/pci" in str(path.resolve())]
    bonded = [path for path in real if (path.parent / "bonding_slave").exists()]
    assert cards >= {(path.parent / "address").read_text().strip() for path in real if path not in bonded}
    assert all(
        re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", d.address) for d in agent.list_devices("here")
    )


def test_nobody_is_nobody() -> None:
    assert open_agent(AgentOptions(), 2) is None
