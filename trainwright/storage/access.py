"""Network access: which hosts a call may reach, and which addresses behind them."""

import ipaddress
import socket
from dataclasses import dataclass

from trainwright.errors import PermissionRefused

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

METADATA_HOSTS = ("metadata.google.internal", "metadata.goog", "metadata", "instance-data")
METADATA = tuple(map(ipaddress.ip_address, ("169.254.169.254", "fd00:ec2::254", "100.100.100.200")))
"""Metadata servers of clouds, which give out the machine's identity: always rejected."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True)
class Access:
    """Hosts that a call may reach, and how long it is retried.

    Attributes:
        hosts: Hosts that an ``https://`` URI may name, as ``host`` or ``host:port``; no other is reached. An
            address of a private network is reached only if it is listed here itself.
        local_addresses: Also reach this machine's own addresses. For tests.
        retry_s: Seconds after the first failure for which a call is retried.
    """

    hosts: tuple[str, ...] = ()
    local_addresses: bool = False
    retry_s: float = 600.0


def require_host(host: str, port: int | None, access: Access) -> None:
    """Reject a host that is not on the list, or is a cloud's metadata server."""
    reject_host(host, local_addresses=access.local_addresses)
    wanted = host.lower() if port in {None, 443} else f"{host.lower()}:{port}"
    if wanted not in {allowed.lower().removesuffix(":443") for allowed in access.hosts}:
        raise PermissionRefused(
            f"host {wanted} is not one that may be read; allowed: {', '.join(access.hosts) or 'none'}",
            where=f"https://{wanted}",
            hint="Add it to data.hosts, if it is to be trusted.",
        )


def reject_host(host: str, *, local_addresses: bool = False) -> None:
    """Reject a host that is a forbidden address, or the known name of one."""
    name = host.lower().rstrip(".")
    if name in METADATA_HOSTS or (name == "localhost" and not local_addresses):
        raise _blocked(name, "this machine" if name == "localhost" else "a cloud's metadata server")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return
    require_address(name, address, Access((name,), local_addresses))


def addresses(host: str, port: int, access: Access) -> list[tuple[str, int]]:
    """Look a host up and return its addresses, if all are allowed: its owner could switch to any of them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for *_, place in found:
        require_address(host, ipaddress.ip_address(str(place[0]).partition("%")[0]), access)
    return [(str(place[0]), int(place[1])) for *_, place in found]


def require_address(host: str, address: Address, access: Access) -> None:
    """Reject an address of this machine, its link, its cloud's metadata, or an unlisted private network."""
    plain: Address = address
    if isinstance(address, ipaddress.IPv6Address):  # it may embed an IPv4 address
        if address in _NAT64:
            plain = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        else:
            teredo = (address.teredo or (None, None))[1]
            plain = address.ipv4_mapped or address.sixtofour or teredo or address
    if plain in METADATA:
        raise _blocked(host, "a cloud's metadata server")
    if plain.is_loopback or plain.is_unspecified:
        if not access.local_addresses:
            raise _blocked(host, "this machine")
    elif plain.is_link_local or plain.is_multicast or plain.is_reserved:
        raise _blocked(host, "a link-local, multicast or reserved address")
    elif not plain.is_global and str(plain) not in access.hosts:
        raise _blocked(host, f"private address {plain}", f"Add {plain} to data.hosts too, if it is meant.")


def _blocked(
    host: str, what: str, hint: str = "Name a server of data; no data lies there."
) -> PermissionRefused:
    return PermissionRefused(
        f"{host} leads to {what}, which is not read from", where=f"https://{host}", hint=hint
    )
