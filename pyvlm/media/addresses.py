"""Which hosts a picture may come from: how they may be written, which addresses are public.

A host is read once, by the strict grammar here: a lower-case ASCII name, a dotted quad, or IPv6 in
brackets. Whatever another parser could read as something else (numbers, octal or hex parts, zone
ids, escapes, other alphabets, a dot at the end) is refused, never normalised.
"""

from __future__ import annotations

import ipaddress
import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Protocol

IpAddress = IPv4Address | IPv6Address

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
MAX_NAME_LENGTH = 253


class AddressPermission(Protocol):
    """Asked for each address before it is connected to."""

    def refusal(self, address: IpAddress) -> str | None:
        """Why no connection may be made to it; None if one may."""


def parse_host(text: str) -> str | IpAddress:
    """A name in lower case or an address; ValueError with our reason for anything else."""
    if text.startswith("[") and text.endswith("]"):
        return _parse_ipv6(text[1:-1])
    if not text:
        raise ValueError("there is no host")
    if not text.isascii():
        raise ValueError("the host is not ASCII; international names are written as xn--...")
    if text.endswith("."):
        raise ValueError("the host ends with a dot")
    name = text.lower()
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return _parse_ipv4(name)
    if len(name) > MAX_NAME_LENGTH or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("the host is not a valid name")
    return name


def _parse_ipv6(text: str) -> IPv6Address:
    if "%" in text:
        raise ValueError("the host has a zone id")
    try:
        return IPv6Address(text)
    except ValueError:
        raise ValueError("the host is not a valid IPv6 address") from None


def _parse_ipv4(text: str) -> IPv4Address:
    try:
        return IPv4Address(text)  # four decimal parts without leading zeros
    except ValueError:
        raise ValueError("the host is an unusual notation of an IPv4 address") from None


class PublicAddresses:
    """Permits addresses of the public internet only.

    The tables are the IANA special-purpose registries, read narrowly: of IPv6 just the global
    unicast block, without the ranges that embed IPv4 addresses (a gateway would unpack them).
    """

    def refusal(self, address: IpAddress) -> str | None:
        if isinstance(address, IPv4Address):
            return _first_match(address, _REFUSED_IPV4)
        if address.scope_id is not None:
            return "it has a zone id"
        if address not in _GLOBAL_UNICAST:
            return _first_match(address, _NAMED_IPV6) or "it is not in the global unicast range"
        if int(address) >> 32 & 0xFDFFFFFF == 0x00005EFE:
            return "it embeds an IPv4 address (ISATAP)"
        return _first_match(address, _REFUSED_IPV6)


def _first_match(
    address: IpAddress, table: tuple[tuple[IPv4Network | IPv6Network, str], ...]
) -> str | None:
    return next((f"it is {kind}" for network, kind in table if address in network), None)


_REFUSED_IPV4 = tuple(
    (IPv4Network(network), kind)
    for network, kind in (
        ("0.0.0.0/8", "this host"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by a provider"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "a platform's metadata service"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved for protocols"),
        ("192.0.2.0/24", "for documentation"),
        ("192.88.99.0/24", "a 6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "for benchmarks"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)

_GLOBAL_UNICAST = IPv6Network("2000::/3")

_NAMED_IPV6 = tuple(
    (IPv6Network(network), kind)
    for network, kind in (
        ("::/128", "this host"),
        ("::1/128", "loopback"),
        ("::ffff:0:0/96", "a mapped IPv4 address"),
        ("64:ff9b::/96", "a translated IPv4 address (NAT64)"),
        ("64:ff9b:1::/48", "a translated IPv4 address (NAT64)"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private"),
        ("ff00::/8", "multicast"),
    )
)

_REFUSED_IPV6 = tuple(
    (IPv6Network(network), kind)
    for network, kind in (
        ("2001::/32", "a tunnelled IPv4 address (Teredo)"),
        ("2001::/23", "reserved for protocols"),
        ("2001:db8::/32", "for documentation"),
        ("2002::/16", "a tunnelled IPv4 address (6to4)"),
        ("3ffe::/16", "reserved"),
        ("3fff::/20", "for documentation"),
    )
)


def parse_address(text: str) -> IpAddress:
    """An address as a resolver gives it, with its zone id if there is one."""
    return ipaddress.ip_address(text)
