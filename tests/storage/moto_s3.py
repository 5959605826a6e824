"""A server of ``s3://`` on a free port: moto, as it is; prints its port. For the emulators' environment."""

import logging

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server


def main() -> None:
    """Serve until the process is ended."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    served = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
    print(served.server_port, flush=True)  # noqa: T201
    served.serve_forever()


if __name__ == "__main__":
    main()
