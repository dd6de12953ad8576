"""Detection of secrets (passwords, tokens, keys) by the name of a value or by its shape.

Secrets belong into the environment, because the content of a file appears in every record, table, page and archive.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

MASK = "***"

_KEY_KINDS = ("api", "access", "secret", "private", "account", "auth", "encryption", "signing")
_SECRET_SUFFIXES = ("password", "passwd", "passphrase", "secret", "token", *(f"{kind}key" for kind in _KEY_KINDS))
# Last words of names that refer to a secret without holding it: password_env, token_file, TokenLifetime.
_NON_SECRET_LAST_WORDS = {
    *("file", "path", "dir", "env", "variable", "url", "uri", "endpoint", "name", "ref", "type", "policy", "format", "algorithm"),
    *("length", "len", "count", "limit", "budget", "size", "ttl", "lifetime", "expires", "expiry", "expiration", "timeout"),
    *("required", "enabled", "supported", "status", "state", "mode"),
}  # fmt: skip
# Words before `token` in names about language models: pad_token, time_to_first_token.
_MODEL_TOKEN_PREFIXES = {
    *("pad", "eos", "bos", "unk", "cls", "sep", "mask", "special", "stop", "start", "end", "per", "first", "last", "next"),
    *("output", "input", "image", "audio", "video", "prompt", "new", "max", "min", "drop", "each", "every", "one", "unexpected"),
}  # fmt: skip
_WORD_PATTERN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Values that stand for a key in programs that need none.
_PLACEHOLDERS = {
    *("", "none", "null", "true", "false", "yes", "no", "auto", "default", "empty", "dummy", "unused", "required", "optional"),
    *("not-needed", "not-used", "no-key", "no-key-required", "sk-no-key-required", "fake", "example", "changeme"),
}  # fmt: skip
_NUMBER_PATTERN = re.compile(r"[-+.\deE_]*")

_SECRET_PATTERN = re.compile(
    r"""
      (?P<huggingface>\bhf_[A-Za-z0-9]{20,})
    | (?P<openai>\bsk-[A-Za-z0-9_-]{20,})
    | (?P<github>\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{22,})
    | (?P<gitlab>\bglpat-[\w-]{20,})
    | (?P<aws>\b(?:AKIA|ASIA)[0-9A-Z]{16}\b)
    | (?P<slack>\bxox[abprs]-[\w-]{10,})
    | (?P<google>\bAIza[\w-]{35})
    | (?P<nvidia>\bnvapi-[\w-]{20,})
    | (?P<jwt>\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+)
    | (?P<key>-----BEGIN\ [A-Z ]*PRIVATE\ KEY-----(?:(?:[\sA-Za-z0-9+/=:,\\]|-(?!----))*-----END\ [A-Z ]*PRIVATE\ KEY-----)?)
    | \b[a-z][a-z0-9+.-]{0,20}://[^\s/:@]{0,200}:(?P<url>[^\s/@]{1,200})@
    | \b(?:[Bb]earer|[Bb]asic)\s+(?P<header>[\w.~+/=-]{16,})
    """,
    re.VERBOSE,
)
_SECRET_DESCRIPTIONS = {
    "huggingface": "a token of Hugging Face",
    "openai": "an API key (sk-..)",
    "github": "a token of GitHub",
    "gitlab": "a token of GitLab",
    "aws": "an access key of AWS",
    "slack": "a token of Slack",
    "google": "an API key of Google",
    "nvidia": "an API key of NVIDIA",
    "jwt": "a JSON web token",
    "key": "a private key",
    "url": "a password in an address",
    "header": "an authorization",
}
_ASSIGNMENT_PATTERN = re.compile(
    r"""(?<![\w.-])(?P<option>-{0,2})
    (?P<name>[A-Za-z_](?:[\w.]|-(?!-)){0,80}(?i:password|passwd|passphrase|secret|token|key)|(?i:password|passwd|passphrase|secret|token))
    (?P<between>["']?(?:\ ?[=:]\ ?|\ ))(?P<quote>\\?["']?)(?P<value>[^\s"'`,;&|<>(){}\[\]$*\\]++)(?![(\[])""",
    re.VERBOSE,
)


class FoundSecret(NamedTuple):
    """Secret found in a text.

    Attributes:
        description: kind of the secret in words, without the secret itself.
        begin: index of the first character of the secret.
        end: index after its last character.
    """

    description: str
    begin: int
    end: int


def is_secret_name(name: object) -> bool:
    """Return True if a variable, option or key of this name holds a secret.

    HF_TOKEN, --api-key, dbPassword, AccessKey and PasswordHash do; pad_token, token_file and sort_key do not.
    """
    words = [word.lower() for word in _WORD_PATTERN.findall(name)] if isinstance(name, str) else []
    if not words or words[-1] in _NON_SECRET_LAST_WORDS:
        return False
    return any(
        previous_word in _KEY_KINDS
        if word == "key"
        else word.endswith(_SECRET_SUFFIXES) and not (word == "token" and previous_word in _MODEL_TOKEN_PREFIXES)
        for previous_word, word in zip(["", *words], words, strict=False)
    )


def is_secret(name: str, value: object) -> bool:
    """Return True if a value with this name is a secret.

    References, paths, numbers and placeholders are not secrets.
    """
    if not isinstance(value, str) or not is_secret_name(name):
        return False
    text = value.strip().strip("\"'")
    if text.startswith(("$", "{", "<", "%", "/", "./", "~")) or text.lower() in _PLACEHOLDERS or text == MASK:
        return False
    return not _NUMBER_PATTERN.fullmatch(text) or "pass" in name.lower()


def find_secrets(text: str) -> Iterator[FoundSecret]:
    """Yield the secrets in a text, such as a log, a command line or a JSON document.

    They are in the order of the text and do not overlap.
    """
    matches = [
        _convert_pattern_match(match)
        for match in _SECRET_PATTERN.finditer(text)
        if match[match.lastgroup or ""] != MASK
    ]
    matches += [
        _convert_assignment_match(match) for match in _ASSIGNMENT_PATTERN.finditer(text) if _is_assigned_secret(match)
    ]
    end = 0
    for secret in sorted(matches, key=lambda secret: (secret.begin, -secret.end)):
        if secret.begin >= end:
            yield secret
            end = secret.end


def find_secrets_in_document(
    document: Any, key_path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the key path and the description of every secret in a JSON-able document.

    A secret is recognised by its key, by the option before it in a list, or by its shape.

    Args:
        document: document or part of one.
        key_path: keys and indexes that lead to this part.
    """
    if isinstance(document, str):
        yield from ((key_path, secret_match.description) for secret_match in find_secrets(document))
    elif isinstance(document, Mapping):
        for key, value in document.items():
            if is_secret(str(key), value):
                yield (*key_path, key), f"the value of {key}"
            elif isinstance(value, list | tuple) and is_secret_name(str(key)):  # values of an axis
                yield from (
                    ((*key_path, key, i), f"a value of {key}") for i, item in enumerate(value) if is_secret(key, item)
                )
            else:
                yield from find_secrets_in_document(value, (*key_path, key))
    elif isinstance(document, list | tuple):
        previous_item: Any = ""
        for index, value in enumerate(document):
            if (
                isinstance(previous_item, str)
                and re.fullmatch(r"--?[\w.-]+", previous_item)
                and is_secret(previous_item, value)
            ):
                yield (*key_path, index), f"the value of {previous_item}"
            else:
                yield from find_secrets_in_document(value, (*key_path, index))
            previous_item = value


def find_environment_references(
    document: Any, key_path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the key path and the name of every variable that a JSON-able document declares as `{from: environment}`.

    Args:
        document: document or part of one.
        key_path: keys and indexes that lead to this part.
    """
    if isinstance(document, Mapping):
        for key, value in document.items():
            if value == {"from": "environment"}:
                yield (*key_path, key), str(key)
            else:
                yield from find_environment_references(value, (*key_path, key))


def mask_secrets(text: str, extra_secrets: Collection[str] = ()) -> str:
    """Replace every secret in a text by `***`.

    Args:
        text: text that may contain secrets.
        extra_secrets: values of further secrets to replace.
    """
    for secret in sorted(extra_secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    parts, end = [], 0
    for secret_match in find_secrets(text):
        parts += [text[end : secret_match.begin], MASK]
        end = secret_match.end
    return "".join([*parts, text[end:]])


def collect_secrets(environment: Mapping[str, str]) -> list[str]:
    """Collect the values of the environment variables that hold secrets.

    Values of fewer than six characters are left out, because they may be a part of other words.
    """
    return [value for name, value in environment.items() if len(value) >= 6 and is_secret(name, value)]


def _convert_pattern_match(match: re.Match[str]) -> FoundSecret:
    kind = match.lastgroup or ""
    return FoundSecret(_SECRET_DESCRIPTIONS[kind], match.start(kind), match.end(kind))


def _convert_assignment_match(match: re.Match[str]) -> FoundSecret:
    return FoundSecret(f"the value of {match['name']}", match.start("value"), match.end("value"))


def _is_assigned_secret(match: re.Match[str]) -> bool:
    """Return True if the text after a name is a secret value, and not the next word of a sentence or program."""
    name, value, separator = match["name"], match["value"], match["between"]
    if not is_secret(name, value) or (separator == " " and not match["option"]):
        return False
    if match["option"] or (separator == "=" and name.isupper()):
        return True
    return len(value) >= 8 and any(map(str.isdigit, value)) and any(map(str.isalpha, value))
