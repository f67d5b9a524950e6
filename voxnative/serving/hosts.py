"""Which hosts may be fetched from, and the address that a checked host is connected to.

A listed name must resolve to public addresses; a private, loopback or link-local address is
allowed only where an address or a network of the list covers it. So nobody who controls the DNS
of a listed name can turn it towards this machine or its network.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from voxnative.errors import AudioInputError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True)
class HostPolicy:
    """An allow-list; empty means that nothing may be fetched.

    Attributes:
        names: host names in lower case; "*.example.com" allows every name below it.
        networks: addresses and networks, private ones too.
    """

    names: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, entries: Iterable[str]) -> HostPolicy:
        """Read a list of names ("cdn.example.com", "*.example.com"), addresses and networks.

        Raises:
            ValueError: an entry is neither.
        """
        names, networks = [], []
        for entry in entries:
            try:
                networks.append(ipaddress.ip_network(entry))
            except ValueError:
                name = entry.removeprefix("*.")
                if not all(label.replace("-", "").isalnum() for label in name.split(".")):
                    raise ValueError(f"{entry!r} is no host name, address or network") from None
                names.append(entry.lower())
        return cls(frozenset(names), tuple(networks))

    async def resolve(self, host: str, port: int, *, field: str) -> str:
        """The one address to connect to.

        All addresses of the host are checked, since any of them could be chosen.

        Raises:
            AudioInputError: the host is not allowed or cannot be resolved.
        """
        literal = _literal(host)
        if literal is not None:
            addresses = [literal]
        elif self._is_listed(host.lower().rstrip(".")):
            addresses = await _lookup(host, port, field)
        else:
            raise AudioInputError(field, host, "a host on the server's list of allowed hosts")
        for address in addresses:
            is_public_by_name = literal is None and is_public(address)
            if not is_public_by_name and not self._covers(address):
                valid = "a host on the server's list, at a public address or one on the list"
                raise AudioInputError(field, host, valid)
        return str(addresses[0])

    def _is_listed(self, name: str) -> bool:
        parents = name.split(".")[1:]
        below = {"*." + ".".join(parents[i:]) for i in range(len(parents))}
        return name in self.names or not below.isdisjoint(self.names)

    def _covers(self, address: Address) -> bool:
        plain = unwrap(address)
        return any(plain.version == net.version and plain in net for net in self.networks)


def unwrap(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one (mapped, 6to4, NAT64), or the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def is_public(address: Address) -> bool:
    """Whether an address belongs to the public internet, read through every IPv6 wrapping."""
    plain = unwrap(address)
    if isinstance(plain, ipaddress.IPv6Address) and plain.teredo is not None:
        return False
    return plain.is_global and not plain.is_multicast and not plain.is_reserved


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


async def _lookup(host: str, port: int, field: str) -> list[Address]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [ipaddress.ip_address(sockaddr[0]) for *_, sockaddr in found]
    except (OSError, UnicodeError, ValueError) as error:
        raise AudioInputError(field, host, "a host that can be resolved") from error
