"""Send one e-mail to a server, encrypted unless configured otherwise."""

import contextlib
import smtplib
import ssl
from email.message import EmailMessage

from trainwright.errors import DependencyError, InputError
from trainwright.experiment import Smtp
from trainwright.retries import retry
from trainwright.summarize.delivery import DEADLINE_S, TIMEOUT_S

_PERMANENT = 500


def send(server: Smtp, password: str, message: EmailMessage) -> None:
    """Send a message to all its recipients, with retries.

    Raises:
        InputError: The server delivers to some recipients only.
        DependencyError: It offers no encryption.
        GaveUp: It did not accept the message until the deadline.
        smtplib.SMTPException: It rejects the login, the sender or all recipients.
    """

    def once() -> None:
        place, trusted = (server.host, server.port), ssl.create_default_context()
        if server.security == "tls":
            client: smtplib.SMTP = smtplib.SMTP_SSL(*place, timeout=TIMEOUT_S, context=trusted)
        else:
            client = smtplib.SMTP(*place, timeout=TIMEOUT_S)
        with contextlib.closing(client):
            if server.security == "starttls":
                client.starttls(context=trusted)
            if server.user:
                client.login(server.user, password)
            refused = client.send_message(message)
            with contextlib.suppress(OSError):  # it has the letter, and another try would send it again
                client.quit()
        if refused:
            rejected = ", ".join(refused)
            raise InputError(f"{server.host} delivers to the other recipients, but rejects {rejected}")

    try:
        retry(once, _is_transient, f"sending mail to {server.host}", DEADLINE_S)
    except smtplib.SMTPNotSupportedError as error:
        raise DependencyError(
            f"{server.host}:{server.port}: {error}",
            hint="Name a port that offers it, or set run.smtp.security.",
        ) from None


def _is_transient(error: Exception) -> bool:
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return all(code < _PERMANENT for code, _ in error.recipients.values())
    if isinstance(error, smtplib.SMTPResponseException):
        return error.smtp_code < _PERMANENT
    if isinstance(error, smtplib.SMTPNotSupportedError | ssl.SSLCertVerificationError):
        return False
    return isinstance(error, OSError)
