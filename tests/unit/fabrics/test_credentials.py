"""Where the user and the password of a control plane come from, and who may read them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import ConfigError
from campaign.fabrics.http.options import ConnectionOptions, Login, read_login, require_login, withhold_secrets

URL = "https://Fabric.example:8443/api"


def connection(**credentials: Any) -> ConnectionOptions:
    return ConnectionOptions(url=URL, credentials=credentials)


def private(path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def test_no_source_is_no_login_and_an_adapter_that_needs_one_says_how_to_give_it() -> None:
    assert read_login(connection()) is None
    with pytest.raises(ConfigError, match=r"user_env.*password_env.*file"):
        require_login(connection())


def test_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = private(tmp_path / "login", "other\nwrong\n")
    monkeypatch.setenv("FABRIC_USER", "ada")
    monkeypatch.setenv("FABRIC_PASSWORD", "pa ss:wörd")
    chosen = connection(user_env="FABRIC_USER", password_env="FABRIC_PASSWORD", file=str(file))
    assert read_login(chosen) == Login("ada", "pa ss:wörd")
    assert read_login(connection(password_env="FABRIC_PASSWORD")) == Login("", "pa ss:wörd")


@pytest.mark.parametrize("value", [None, ""])
def test_a_source_that_gives_nothing_is_no_reason_to_log_in_as_somebody_else(
    value: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = private(tmp_path / "login", "other\nwrong\n")
    monkeypatch.delenv("FABRIC_PASSWORD", raising=False)
    if value is not None:
        monkeypatch.setenv("FABRIC_PASSWORD", value)
    with pytest.raises(ConfigError, match="FABRIC_PASSWORD is not set; export"):
        read_login(connection(password_env="FABRIC_PASSWORD", file=str(file)))


def test_a_user_without_a_password_is_refused_at_the_door() -> None:
    with pytest.raises(ValueError, match="password_env"):
        connection(user_env="FABRIC_USER")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ada\nlove lace \n", Login("ada", "love lace ")),
        ("ada\r\nlovelace\r\n\r\n", Login("ada", "lovelace")),
        ("\nkey-only", Login("", "key-only")),
    ],
)
def test_a_file_has_two_lines(text: str, found: Login, tmp_path: Path) -> None:
    assert read_login(connection(file=str(private(tmp_path / "login", text)))) == found


@pytest.mark.parametrize("text", ["", "ada\n", "ada\n\n", "ada\nhunter2\nmore\n", b"ada\n\xff\xfe", "x" * 70_000])
def test_another_file_is_refused_without_quoting_it(text: str | bytes, tmp_path: Path) -> None:
    file = private(tmp_path / "login", text)
    with pytest.raises(ConfigError, match=str(file)) as caught:
        read_login(connection(file=str(file)))
    assert "hunter2" not in str(caught.value)
    assert "ada" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o602, 0o601])
def test_what_others_may_open_is_refused_with_what_to_do(mode: int, tmp_path: Path) -> None:
    path = private(tmp_path / "login", "ada\nhunter2\n", mode)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
        read_login(connection(file=str(path)))


def test_a_stricter_mode_is_fine(tmp_path: Path) -> None:
    assert read_login(connection(file=str(private(tmp_path / "login", "ada\nx", 0o400)))) == Login("ada", "x")


def test_a_file_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = private(tmp_path / "login", "ada\nhunter2\n")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        read_login(connection(file=str(file)))


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path, problem in (
        (tmp_path, "directory"),
        (tmp_path / "pipe", "regular file"),
        (tmp_path / "none", "the file does not exist; create it with mode 600"),
        (tmp_path / "a\0b", "cannot be read"),
        ("~nobody-of-this-name/login", "nobody-of-this-name"),
    ):
        with pytest.raises(ConfigError, match=problem):
            read_login(connection(file=str(path)))


def test_a_login_does_not_show_its_password() -> None:
    found = Login("ada", "hunter2")
    assert "hunter2" not in f"{found} {found!r}"
    assert "ada" in repr(found)


@pytest.mark.parametrize(
    "url", ["https://h:99999", "https://h:0", "https://:80", "ftp://h", "https://u:p@h", "https://h?q"]
)
def test_an_address_that_is_none_is_refused_at_the_door(url: str) -> None:
    with pytest.raises(ValueError, match="url"):
        ConnectionOptions(url=url)


def test_certificates_that_are_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    for name in ("ca.pem", "missing.pem"):
        with pytest.raises(ConfigError, match=f"ca_file: .*{name}.*PEM"):
            ConnectionOptions(url=URL, ca_file=str(tmp_path / name)).create_tls_context()


def test_what_is_started_does_not_inherit_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FABRIC_A", "FABRIC_B", "FABRIC_C"):
        monkeypatch.setenv(name, "secret")
    options = {"credentials": {"user_env": "FABRIC_A", "password_env": "FABRIC_B"}, "client_secret_env": "NOT_SET"}
    with withhold_secrets(options):
        assert not {"FABRIC_A", "FABRIC_B", "NOT_SET"} & set(os.environ)
        assert "FABRIC_C" in os.environ
    assert {os.environ.get(name) for name in ("FABRIC_A", "FABRIC_B", "FABRIC_C")} == {"secret"}
    assert "NOT_SET" not in os.environ
