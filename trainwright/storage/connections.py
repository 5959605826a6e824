"""Connections of requests that go to an address that was checked, and to no other.

Checking a name and connecting to it are two look-ups, between which its answer can change; so the name is
looked up once, every address it has is checked, and the connection is made to one of those. The certificate
is still that of the name.
"""

import socket
import ssl
from typing import Any, ClassVar

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPSConnection
from urllib3.connectionpool import HTTPSConnectionPool
from urllib3.exceptions import NameResolutionError, NewConnectionError

from trainwright.storage.access import Access, addresses


class Checked(HTTPAdapter):
    """An adapter for https whose every connection, also after a redirect, goes to an allowed address."""

    def __init__(self, access: Access) -> None:
        self._access = access
        super().__init__(max_retries=0)

    def init_poolmanager(self, *args: Any, **settings: Any) -> None:
        """Make the pool of connections; certificates of the machine count besides those of requests."""
        settings["ssl_context"] = ssl.create_default_context()
        super().init_poolmanager(*args, **settings)
        connection = type("Connection", (_Connection,), {"access": self._access})
        pool = type("Pool", (HTTPSConnectionPool,), {"ConnectionCls": connection})
        self.poolmanager.pool_classes_by_scheme = {"https": pool}


class _Connection(HTTPSConnection):
    access: ClassVar[Access]

    def _new_conn(self) -> socket.socket:
        try:
            places = addresses(self.host, self.port or self.default_port, self.access)
        except OSError as error:
            raise NameResolutionError(self.host, self, error) from error  # type: ignore[arg-type]
        for place in places:
            try:
                return socket.create_connection(place, self.timeout, self.source_address)
            except OSError as error:
                failure = error
        raise NewConnectionError(self, f"no address of {self.host} answers: {failure}")
