"""Options whose values mean nothing: one message, and never a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from campaign.cli.main import main
from campaign.common.errors import ConfigError
from tests.campaign_files import load, write_files

EXAMPLES = int(os.environ.get("CAMPAIGN_FUZZ_EXAMPLES", "100"))
NONSENSE = [
    "fabric reconcile {system} --grace nan",
    "fabric reconcile {system} --grace -1",
    "status {campaign} --watch nan",
    "status {campaign} --watch=inf",
    "plan {campaign} --results ''",
    "plan ''",
    "report {campaign} --output ''",
    "recommend {campaign} --objective mix:",
    "recommend {campaign} --objective throughput:",
    "fabric emulate h3 --port -1",
    "fabric emulate h3 --port 65536",
    "fabric emulate h3 --fault x,y",
    "fabric emulate h3 --fault drop_after,POST",
    "fabric emulate h3 --fault drop_after,POST,",
    "fabric emulate h3 --fault ''",
]


@pytest.mark.parametrize("command", NONSENSE)
def test_an_option_that_means_nothing_is_one_message(command: str, tmp_path: Path) -> None:
    campaign = write_files(tmp_path)
    words = [
        word.format(campaign=campaign, system=tmp_path / "systems" / "bench.yaml").replace("''", "")
        for word in command.split()
    ]
    result = CliRunner().invoke(main, words)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (1, 2)
    assert "rror: " in result.output


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"system.times_factor": 2**64}, "times_factor"),
        ({"system.emulation": {"pace": {"cpu-rank": {"fp32": 1e308}}}}, "emulation.pace"),
        ({"system.slurm": {"partition": "-rf"}}, "slurm.partition"),
        ({"system.slurm": {"account": ""}}, "slurm.account"),
        ({"system.slurm": {"slurmd": {"stop": ["true"], "start": []}}}, "slurm.slurmd.start"),
        ({"system.slurm": {"devices_command": []}}, "slurm.devices_command"),
        ({"campaign.title": "a\u202egpj.exe"}, "title: the text contains the character U+202E"),
        ({"campaign.title": "a\0b"}, "title: the text contains the character U+0000"),
        ({"system.notes": ["\x1b[2J"]}, "notes.0: the text contains the character U+001B"),
    ],
)
def test_a_value_that_means_nothing_is_named(changes: dict[str, object], place: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as told:
        load(tmp_path, changes)
    assert place in str(told.value)


_WORDS = st.sampled_from(
    ["nan", "inf", "-1", "0", "1e400", "", "-rf", "--", "x,y", "a=b", "\u202e", "/dev/null", "[]", "9" * 400]
)


_COMMANDS = [
    "plan",
    "status",
    "logs",
    "systems",
    "inventory",
    "validate",
    "verify",
    "recommend",
    "summary",
    "figures",
    "published",
    "compare",
]


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_any_options_end_in_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: st.DataObject) -> None:
    """Of commands that change nothing, with odd words for their options."""
    monkeypatch.chdir(tmp_path)
    campaign = write_files(tmp_path)
    name = data.draw(st.sampled_from(_COMMANDS))
    command = main.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    named = [option for option in command.params if option.param_type_name == "option"]
    words = [name, str(campaign)] if data.draw(st.booleans()) else [name, data.draw(_WORDS)]
    for option in data.draw(st.lists(st.sampled_from(named), max_size=3)) if named else ():
        words.append(
            f"{option.opts[0]}={data.draw(_WORDS)}" if not getattr(option, "is_flag", False) else option.opts[0]
        )
    if any(word.startswith("--watch") for word in words):
        return  # it goes on for ever where its number is one
    result = CliRunner().invoke(main, words)
    assert isinstance(result.exception, SystemExit | None), (words, result.exception)
    assert "Traceback" not in result.output, words
