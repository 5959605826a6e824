"""``python -m trainwright.service SETTINGS``: serve until stopped; the settings are one JSON object."""

import sys
from collections.abc import Sequence

from trainwright.errors import reported
from trainwright.service.settings import Settings


def main(arguments: Sequence[str]) -> None:
    """Serve.

    Raises:
        SystemExit: With a documented exit code.
    """
    with reported("service"):
        import uvicorn

        from trainwright.service.app import create_app

        settings = Settings.parse(arguments[0], where="settings")
        uvicorn.run(create_app(settings), host=settings.address, port=settings.port, log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1:])
