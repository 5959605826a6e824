"""``python -m trainwright.service SETTINGS``: serve until stopped.

The settings are one JSON object, or the path of a file with it.
"""

import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from trainwright.errors import InputError, reported
from trainwright.service.app import SIGN_IN, create_app
from trainwright.service.runs import index_of
from trainwright.service.settings import Settings


def main(arguments: Sequence[str]) -> None:
    """Serve.

    Raises:
        SystemExit: With a documented exit code.
    """
    with reported("service"):
        import uvicorn

        text = arguments[0]
        settings = Settings.parse(text, "settings") if text.startswith("{") else Settings.read(Path(text))
        app = create_app(settings)
        listener = _listen(settings)
        port = listener.getsockname()[1]
        path = f"{SIGN_IN}?token={app.state.access.token}" if app.state.access.token else "/"
        sys.stdout.write(f"http://{settings.address}:{port}{path}\n")
        sys.stdout.flush()
        config = uvicorn.Config(
            app,
            log_level="warning",
            proxy_headers=False,
            root_path=settings.root_path,
            server_header=False,
            timeout_graceful_shutdown=5,
        )
        threading.Thread(target=index_of(settings.runs_folder).lineage, daemon=True).start()  # read ahead
        uvicorn.Server(config).run(sockets=[listener])


def _listen(settings: Settings) -> socket.socket:
    try:
        return socket.create_server((settings.address, settings.port))
    except OSError as error:
        raise InputError(
            f"cannot listen there: {error.strerror}",
            where=f"{settings.address}:{settings.port}",
            hint="Name another --port; 0 takes any free one.",
        ) from None


if __name__ == "__main__":
    main(sys.argv[1:])
