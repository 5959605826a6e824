"""Who asks for a change, beside what they say: the account and the machine that the process runs as."""

import os
import pwd
import socket


def account() -> dict[str, str]:
    """Return the name of the account and of the host; in a pod, the host is the pod's name.

    It is what the system says, not a proof: on a cluster, who may write the audit and the registry is decided
    by the service account's rights, and the store's own log has who did.
    """
    number = os.getuid()
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:  # an image with a numeric user
        name = f"uid {number}"
    return {"account": name, "host": socket.gethostname()}
