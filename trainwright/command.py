"""The command line of a verb, whose wrong arguments are told like every other wrong input."""

import argparse
from typing import Never

from trainwright.errors import InputError


class Parser(argparse.ArgumentParser):
    """Raises for a wrong argument, where ``argparse`` would write its own lines and exit with 2."""

    def error(self, message: str) -> Never:
        """Report a wrong argument.

        Raises:
            InputError: Always.
        """
        raise InputError(message, where="command line", hint=self.format_usage().strip())
