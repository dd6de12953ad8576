"""Detection of secrets (passwords, tokens, keys) by the name of a value or by its shape.

Secrets belong into the environment, because the content of a file appears in every record, table, page and archive.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

MASK = "***"

_KEYS = ("api", "access", "secret", "private", "account", "auth", "encryption", "signing")
_ENDINGS = ("password", "passwd", "passphrase", "secret", "token", *(f"{kind}key" for kind in _KEYS))
# Last words of names that refer to a secret without holding it: password_env, token_file, TokenLifetime.
_ABOUT = {
    *("file", "path", "dir", "env", "variable", "url", "uri", "endpoint", "name", "ref", "type", "policy", "format", "algorithm"),
    *("length", "len", "count", "limit", "budget", "size", "ttl", "lifetime", "expires", "expiry", "expiration", "timeout"),
    *("required", "enabled", "supported", "status", "state", "mode"),
}  # fmt: skip
# Words before `token` in names about language models: pad_token, time_to_first_token.
_MODEL_TOKENS = {
    *("pad", "eos", "bos", "unk", "cls", "sep", "mask", "special", "stop", "start", "end", "per", "first", "last", "next"),
    *("output", "input", "image", "audio", "video", "prompt", "new", "max", "min", "drop", "each", "every", "one", "unexpected"),
}  # fmt: skip
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Values that stand for a key in programs that need none.
_PLACEHOLDERS = {
    *("", "none", "null", "true", "false", "yes", "no", "auto", "default", "empty", "dummy", "unused", "required", "optional"),
    *("not-needed", "not-used", "no-key", "no-key-required", "sk-no-key-required", "fake", "example", "changeme"),
}  # fmt: skip
_NUMBER = re.compile(r"[-+.\deE_]*")

_SHAPES = re.compile(
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
_SHAPE_NAMES = {
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
_NAMED = re.compile(
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

    what: str
    begin: int
    end: int


def names_secret(name: object) -> bool:
    """Return True if a variable, option or key of this name holds a secret.

    HF_TOKEN, --api-key, dbPassword, AccessKey and PasswordHash do; pad_token, token_file and sort_key do not.
    """
    words = [word.lower() for word in _WORD.findall(name)] if isinstance(name, str) else []
    if not words or words[-1] in _ABOUT:
        return False
    return any(
        before in _KEYS
        if word == "key"
        else word.endswith(_ENDINGS) and not (word == "token" and before in _MODEL_TOKENS)
        for before, word in zip(["", *words], words, strict=False)
    )


def is_secret(name: str, value: object) -> bool:
    """Return True if a value with this name is a secret.

    References, paths, numbers and placeholders are not secrets.
    """
    if not isinstance(value, str) or not names_secret(name):
        return False
    text = value.strip().strip("\"'")
    if text.startswith(("$", "{", "<", "%", "/", "./", "~")) or text.lower() in _PLACEHOLDERS or text == MASK:
        return False
    return not _NUMBER.fullmatch(text) or "pass" in name.lower()


def find(text: str) -> Iterator[FoundSecret]:
    """Yield the secrets in a text, such as a log, a command line or a JSON document.

    They are in the order of the text and do not overlap.
    """
    found = [_of_shape(match) for match in _SHAPES.finditer(text) if match[match.lastgroup or ""] != MASK]
    found += [_of_name(match) for match in _NAMED.finditer(text) if _is_given(match)]
    end = 0
    for each in sorted(found, key=lambda each: (each.begin, -each.end)):
        if each.begin >= end:
            yield each
            end = each.end


def find_in(document: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the key path and the description of every secret in a JSON-able document.

    A secret is recognised by its key, by the option before it in a list, or by its shape.

    Args:
        document: document or part of one.
        key_path: keys and indexes that lead to this part.
    """
    if isinstance(document, str):
        yield from ((place, each.what) for each in find(document))
    elif isinstance(document, Mapping):
        for key, value in document.items():
            if is_secret(str(key), value):
                yield (*place, key), f"the value of {key}"
            elif isinstance(value, list | tuple) and names_secret(str(key)):  # values of an axis
                yield from (
                    ((*place, key, i), f"a value of {key}") for i, one in enumerate(value) if is_secret(key, one)
                )
            else:
                yield from find_in(value, (*place, key))
    elif isinstance(document, list | tuple):
        before: Any = ""
        for index, value in enumerate(document):
            if isinstance(before, str) and re.fullmatch(r"--?[\w.-]+", before) and is_secret(before, value):
                yield (*place, index), f"the value of {before}"
            else:
                yield from find_in(value, (*place, index))
            before = value


def taken_from_environment(
    document: Any, place: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the key path and the name of every variable that a JSON-able document declares as `{from: environment}`.

    Args:
        document: document or part of one.
        key_path: keys and indexes that lead to this part.
    """
    if isinstance(document, Mapping):
        for key, value in document.items():
            if value == {"from": "environment"}:
                yield (*place, key), str(key)
            else:
                yield from taken_from_environment(value, (*place, key))


def masked(text: str, known: Collection[str] = ()) -> str:
    """Replace every secret in a text by `***`.

    Args:
        text: text that may contain secrets.
        extra_secrets: values of further secrets to replace.
    """
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, MASK)
    parts, end = [], 0
    for each in find(text):
        parts += [text[end : each.begin], MASK]
        end = each.end
    return "".join([*parts, text[end:]])


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """Return the values of the environment variables that are secrets.

    Values of fewer than six characters are left out, because they may be a part of other words.
    """
    return [value for name, value in environment.items() if len(value) >= 6 and is_secret(name, value)]


def _of_shape(match: re.Match[str]) -> FoundSecret:
    kind = match.lastgroup or ""
    return FoundSecret(_SHAPE_NAMES[kind], match.start(kind), match.end(kind))


def _of_name(match: re.Match[str]) -> FoundSecret:
    return FoundSecret(f"the value of {match['name']}", match.start("value"), match.end("value"))


def _is_given(match: re.Match[str]) -> bool:
    """Return True if the text after a name is a secret value, and not the next word of a sentence or program."""
    name, value, between = match["name"], match["value"], match["between"]
    if not is_secret(name, value) or (between == " " and not match["option"]):
        return False
    if match["option"] or (between == "=" and name.isupper()):
        return True
    return len(value) >= 8 and any(map(str.isdigit, value)) and any(map(str.isalpha, value))
