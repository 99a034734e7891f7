"""Which addresses count as public."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from pyvlm.media.addresses import PublicAddresses, parse_host

RULES = PublicAddresses()


@pytest.mark.parametrize(
    "text",
    ["0.0.0.0", "0.1.2.3", "10.255.255.255", "100.64.0.0", "100.127.255.255", "127.0.0.1",
     "127.255.255.255", "169.254.0.0", "172.16.0.0", "172.31.255.255", "192.0.0.192", "192.0.2.1",
     "192.88.99.1", "192.168.255.255", "198.18.0.0", "198.19.255.255", "198.51.100.9",
     "203.0.113.9", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
     "168.63.129.16", "::", "::1", "::2", "::ffff:8.8.8.8", "::ffff:127.0.0.1", "::8.8.8.8",
     "64:ff9b::8.8.8.8", "64:ff9b:1::1", "100::1", "2001::1", "2001:2::1", "2001:10::1",
     "2001:20::1", "2001:1ff:ffff::1", "2001:db8::1", "2002:808:808::1", "3ffe::1", "3fff::1",
     "3fff:fff::1", "4000::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "febf::1",
     "fec0::1", "ff02::1", "2606:4700::1111%1", "2606:4700::5efe:a00:1",
     "2606:4700::200:5efe:a00:1"],
)  # fmt: skip
def test_not_public(text: str) -> None:
    assert (RULES.refusal(ip_address(text)) or "").startswith("it ")


@pytest.mark.parametrize(
    "text",
    ["1.0.0.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0",
     "126.255.255.255", "128.0.0.0", "169.253.255.255", "172.15.255.255", "172.32.0.0",
     "191.255.255.255", "192.1.0.0", "192.167.255.255", "198.17.255.255", "198.20.0.0",
     "223.255.255.255", "168.63.129.15", "2606:4700::1111", "2a00:1450:4001::200e",
     "2001:200::1", "2001:4860:4860::8888", "2003::1", "3fff:1000::1"],
)  # fmt: skip
def test_public(text: str) -> None:
    assert RULES.refusal(ip_address(text)) is None


@given(st.ip_addresses())
def test_never_more_than_the_standard_library_calls_global(address) -> None:
    if RULES.refusal(address) is None:
        assert address.is_global
        assert not address.is_multicast


@given(st.ip_addresses(v=4))
def test_no_way_to_embed_an_ipv4_address_is_public(inner: IPv4Address) -> None:
    low = int(inner)
    embedded = [low, 0xFFFF << 32 | low, 0x64FF9B << 96 | low, 0x2002 << 112 | low << 80,
                0x20010000 << 96 | low << 64, 0x20010000 << 96 | (low ^ 0xFFFFFFFF),
                0x26064700 << 96 | 0x5EFE << 32 | low,
                0x26064700 << 96 | 0x2005EFE << 32 | low]  # fmt: skip
    assert all(RULES.refusal(IPv6Address(number)) for number in embedded)


@given(st.text(max_size=40) | st.from_regex(r"[0-9a-fxA-F.:\[\]%]{1,30}", fullmatch=True))
def test_a_host_is_a_plain_name_an_address_or_refused(text: str) -> None:
    try:
        host = parse_host(text)
    except ValueError as error:
        event(str(error))
        return
    if isinstance(host, str):
        assert host == text.lower()
        assert not host.rsplit(".", 1)[-1].isdecimal()
        assert set(host) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.")
    else:
        assert parse_host(f"[{host}]" if host.version == 6 else str(host)) == host
