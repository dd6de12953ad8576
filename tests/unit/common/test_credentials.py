"""What counts as a secret, by its name and by its shape, and what does not."""

from __future__ import annotations

import pytest

from campaign.common.credentials import (
    collect_secrets,
    find_secrets,
    find_secrets_in_document,
    is_secret,
    is_secret_name,
    mask_secrets,
)

HF = "hf_" + "aB3" * 11
SECRET_NAMES = [
    *("HF_TOKEN", "PGPASSWORD", "api_key", "--api-key", "awsSecretAccessKey", "client_secret", "AccessKey", "Passphrase"),
    *("private_key", "auth_key", "EncryptionKey", "signing_key", "accesskey", "PasswordHash", "X-Auth-Token", "token_value"),
]  # fmt: skip
SHAPES = [
    HF,
    "sk-proj-" + "aB3_" * 8,
    "ghp_" + "a1" * 18,
    "github_pat_" + "a1_" * 10,
    "glpat-" + "a1-" * 8,
    "AKIA" + "A1B2" * 4,
    "xoxb-1234567890-abcdef",
    "AIza" + "a1b2c" * 7,
    "nvapi-" + "a1b2" * 8,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow/+=\n-----END RSA PRIVATE KEY-----",
]


@pytest.mark.parametrize("secret", SHAPES)
@pytest.mark.parametrize("around", ["{}", "login failed for {} (401)", '{{"a": "{}"}}', "x={}\n"])
def test_a_secret_is_known_by_its_shape(secret, around):
    text = around.format(secret)

    assert mask_secrets(text) == around.format("***")
    assert all(secret not in each.description for each in find_secrets(text))


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("export HF_TOKEN=abcdef; run", "abcdef"),
        ("serve --token=s3cr3t --port 1", "s3cr3t"),
        ("serve --api-key swordfish", "swordfish"),
        ('{"api_key": "abc12345678"}', "abc12345678"),
        ("password: hunter2hunter2", "hunter2hunter2"),
        ("https://me:pw1@example.org/x", "pw1"),
        ("Authorization: Bearer abcdefghijklmnopqrst", "abcdefghijklmnopqrst"),
    ],
)
def test_a_secret_is_known_by_its_name(text, hidden):
    assert mask_secrets(text) == text.replace(hidden, "***")


@pytest.mark.parametrize(
    "text",
    [
        "password: required",
        "Unexpected token: something",
        "token = tokenizer.decode(ids[0])",
        'api_key=os.environ["X"]',
        "pad_token=</s>",
        "--max-tokens 512",
        "time_per_token: 0.0123",
        "OPENAI_API_KEY=EMPTY",
        "--token $HF_TOKEN --token={token} HF_TOKEN=/run/secrets/hf",
        "NCCL WARN key: value1234",
        "https://example.org:443/a@b",
        "https://me:***@example.org/x",
    ],
)
def test_what_programs_print_of_tokens_and_keys_is_no_secret(text):
    assert mask_secrets(text) == text


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_names_of_secrets(name):
    assert is_secret_name(name)
    assert is_secret(name, "swordfish")
    assert not is_secret(name, "$OTHER")
    assert not is_secret(name, 5)
    assert not is_secret(name, "none")


@pytest.mark.parametrize(
    "name",
    [
        *("password_env", "token_file", "HF_TOKEN_PATH", "eos_token", "keyword", "max_tokens", "sort_key"),
        *("TokenLifetime", "PasswordPolicy", "secretName", "token_type", "public_key", "HostKeyChecking", "time_per_token"),
    ],
)  # fmt: skip
def test_names_of_what_is_none(name):
    assert not is_secret(name, "swordfish")


def test_documents_are_searched_by_key_option_and_shape():
    document = {
        "environment": {"HF_TOKEN": "swordfish", "OMP_NUM_THREADS": "1"},
        "command": ["serve", "--token=swordfish", "--api-key", "swordfish", HF],
        "axes": {"options": {"api_key": ["swordfish", "none"]}},
    }

    assert [place for place, _ in find_secrets_in_document(document)] == [
        ("environment", "HF_TOKEN"),
        ("command", 1),
        ("command", 3),
        ("command", 4),
        ("axes", "options", "api_key", 0),
    ]
    assert not any("swordfish" in what for _, what in find_secrets_in_document(document))


def test_values_of_the_environment_are_masked_wherever_they_stand():
    known = collect_secrets({"HF_TOKEN": "swordfish", "USER": "somebody", "DB_PASSWORD": "pw"})

    assert known == ["swordfish"]
    assert mask_secrets("refused: swordfish, of somebody", known) == "refused: ***, of somebody"


def test_long_texts_take_no_long_time():
    for unit in ("token ", "a-", "-----BEGIN PRIVATE KEY-----", "https://", "password:", "--token="):
        assert len(mask_secrets(unit * 20_000)) > 0
