"""Path patterns with names in braces: what a path says of its log. Pure."""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from campaign.errors import ConfigError, nearest

NUMBERS = frozenset(
    {"batch", "batch_global", "repetition", "hosts", "devices_per_host", "devices_used", "devices", "ranks"}
)
_WILD = re.compile(r"\*\*/|\*")


@dataclass(frozen=True)
class Pattern:
    """strict: matches where every name has one of the words that are known; loose: where it might have."""

    text: str
    strict: re.Pattern[str]
    loose: re.Pattern[str]

    def match(self, path: str) -> Mapping[str, str] | None:
        """Name -> text of it in the path; None where the pattern does not fit."""
        found = self.strict.fullmatch(path) or self.loose.fullmatch(path)
        return None if found is None else found.groupdict()


def pattern(text: str, names: Collection[str], words: Mapping[str, Collection[str]], where: str) -> Pattern:
    """Compile a pattern.

    names: what can stand in braces; words: name -> texts that are known for it, preferred where a path can be read in two ways.
    ConfigError for a name that is not known, and for braces that do not close.
    """
    try:
        parts = [
            (literal, name, form, conversion) for literal, name, form, conversion in string.Formatter().parse(text)
        ]
    except ValueError as error:
        raise ConfigError(f"{where}: '{text}': {error}; write {{{{ and }}}} for literal braces") from error
    strict, loose, seen = "", "", set[str]()
    for literal, name, form, conversion in parts:
        plain = _literal(literal)
        strict, loose = strict + plain, loose + plain
        if name is None:
            continue
        if form or conversion or name not in names:
            raise ConfigError(f"{where}: '{{{name}}}' is not a name that a path can contain; {nearest(name, names)}")
        if name in seen:
            strict, loose = strict + f"(?P={name})", loose + f"(?P={name})"
            continue
        seen.add(name)
        known = sorted(map(re.escape, words.get(name, ())), key=len, reverse=True)
        strict += f"(?P<{name}>{'|'.join(known) if known else _any(name)})"
        loose += f"(?P<{name}>{_any(name)})"
    return Pattern(text, re.compile(strict), re.compile(loose))


def plain(text: str) -> re.Pattern[str]:
    """A pattern without names, in which braces mean nothing."""
    return re.compile(_literal(text))


def _any(name: str) -> str:
    return r"\d{1,9}" if name in NUMBERS else r"[^/]+"


def _literal(text: str) -> str:
    made, at = "", 0
    for wild in _WILD.finditer(text):
        made += re.escape(text[at : wild.start()]) + ("(?:[^/]+/)*" if wild[0] == "**/" else "[^/]*")
        at = wild.end()
    return made + re.escape(text[at:])
