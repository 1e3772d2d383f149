"""Text without what must not leave the house: secrets, addresses, hosts, users (pure).

The same thing gets the same stand-in everywhere, so that a report still says which
node is which.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*(?![\w:])")
_MAC = re.compile(r"(?<![\w:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![\w:])")
_HOME = re.compile(r"/(home|Users)/([^/\s\"':,;]+)")
_TOKENS = (
    re.compile(r"\b(?:hf|sk|ghp|gho|glpat|xox[abp])[_-][A-Za-z0-9_-]{10,}"),
    re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(
        r"(?i)(?<![A-Za-z])(?:[a-z_]*(?:api[_-]?key|token|password|secret))"
        r"[\"']?\s*[=:]\s*[\"']?([^\s\"',}]{6,})"
    ),
    re.compile(r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*KEY-----"),
    # a signing key of Nix: NAME:BASE64 of 64 bytes
    re.compile(r"(?<!\S)[A-Za-z0-9._-]+:[A-Za-z0-9+/]{86}=="),
)
SECRET = "<secret>"  # noqa: S105 - the stand-in for one


class Redactor:
    """Replaces secrets, addresses, host names and users in text.

    ``secrets`` are known values, ``names`` host and user names; single letters and
    those of :data:`PLAIN` stay, since they say nothing.
    """

    PLAIN = frozenset({"local", "localhost", "root", "none", "head", "worker"})

    def __init__(self, secrets: Iterable[str], names: Iterable[str]) -> None:
        self._secrets = sorted({s for s in secrets if len(s) > 5}, key=len)[::-1]
        wanted = {n for n in names if len(n) > 1 and n.lower() not in self.PLAIN}
        self._names = {
            name: f"<name-{number}>"
            for number, name in enumerate(sorted(wanted, key=len)[::-1], start=1)
        }
        self._seen: dict[str, dict[str, str]] = {}

    def _stand_in(self, kind: str, value: str) -> str:
        known = self._seen.setdefault(kind, {})
        return known.setdefault(value, f"<{kind}-{len(known) + 1}>")

    def _address(self, found: re.Match[str]) -> str:
        text = found[0]
        core = text.rstrip(":.") if text.rstrip(":.").count(":") > 1 else text
        try:
            address = ipaddress.ip_address(core)
        except ValueError:
            return text
        if address.is_loopback or address.is_unspecified:
            return text
        kind = "ip" if address.version == 4 else "ip6"
        return self._stand_in(kind, address.compressed) + text[len(core) :]

    def _mac(self, found: re.Match[str]) -> str:
        return self._stand_in("mac", found[0].lower())

    def _home(self, found: re.Match[str]) -> str:
        return f"/{found[1]}/{self._stand_in('user', found[2])}"

    def apply(self, text: str) -> str:
        """``text`` with a stand-in for everything that must not be seen."""
        for secret in self._secrets:
            text = text.replace(secret, SECRET)
        for pattern in _TOKENS:
            text = pattern.sub(_hide, text)
        text = _MAC.sub(self._mac, text)
        text = _IPV4.sub(self._address, text)
        text = _IPV6.sub(self._address, text)
        text = _HOME.sub(self._home, text)
        for name, stand_in in self._names.items():
            word = rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"
            text = re.sub(word, stand_in, text, flags=re.IGNORECASE)
        return text


def _hide(found: re.Match[str]) -> str:
    """The match with its secret part hidden: the group if there is one, else all."""
    if not found.groups():
        return SECRET
    start, end = found.start(1) - found.start(), found.end(1) - found.start()
    return found[0][:start] + SECRET + found[0][end:]
