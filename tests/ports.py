"""Ports for servers that tests start."""

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """Return a port of the loopback that nobody listens on.

    It lies below those that the kernel gives to connections: one of these could be taken by another program
    before the server that is started with it listens there.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
