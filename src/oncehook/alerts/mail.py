"""The mail target of alerts. It is imported only if one is configured."""

import smtplib
import ssl
from email.message import EmailMessage
from email.utils import format_datetime

from oncehook.alerts.message import Message, time_of
from oncehook.alerts.settings import TargetSettings
from oncehook.concurrency.calling import Threads, call
from oncehook.config.secret import resolve
from oncehook.model.errors import ConfigurationError, SendFailed


class MailTarget:
    """Sends one message to all of `to`, in a thread because the standard library's SMTP client blocks."""

    kind = "smtp"

    def __init__(self, name: str, settings: TargetSettings) -> None:
        self.name = name
        self.settings = settings
        self.timeout = settings.timeout
        where = f"alerts.targets.{name}"
        self.host, self.port = _host_and_port(settings.smtp or "", f"{where}.smtp", settings.tls)
        self.where = f"{self.host}:{self.port}"
        self.user = settings.user and resolve(settings.user, f"{where}.user", "target")
        self.password = settings.password and resolve(settings.password, f"{where}.password", "target")

    async def send(self, message: Message) -> str:
        thread = Threads(1, "oncehook-mail")  # a dedicated thread: it is abandoned if the server never finishes
        try:
            return str(await call(self.where, self._send, thread, self.timeout, message))
        except (smtplib.SMTPException, OSError, UnicodeError) as error:
            raise SendFailed(f"{self.where} {_error_summary(error, self.timeout)}") from None

    def _send(self, message: Message) -> str:
        mail = compose_mail(message, self.settings.sender or "", self.settings.to)
        with self._connect() as server:
            if self.settings.tls == "starttls":
                server.starttls(context=ssl.create_default_context())
            if self.user and self.password:
                server.login(self.user, self.password)
            rejected = server.send_message(mail)
        accepted = len(self.settings.to) - len(rejected)
        return f"accepted it for {accepted} of {len(self.settings.to)} recipients"

    def _connect(self) -> smtplib.SMTP:
        if self.settings.tls == "implicit":
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(self.host, self.port, timeout=self.timeout, context=context)
        return smtplib.SMTP(self.host, self.port, timeout=self.timeout)


def _host_and_port(text: str, where: str, tls: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":") if ":" in text else (text, "", "465" if tls == "implicit" else "587")
    if not host.strip("[]") or not port.isdigit() or not 0 < int(port) < 65536 or not text.isprintable() or "/" in text:
        raise ConfigurationError(f"{where} is {text!r}: expected a mail server, such as mail.example.com:587")
    return host.strip("[]"), int(port)


def _error_summary(error: Exception, timeout: float) -> str:
    """Describe an error of a mail server. Only its code is shown, because its text may quote the message."""
    if isinstance(error, UnicodeError):
        return "was not contacted: the user name, password or an address is not ASCII"
    if isinstance(error, TimeoutError):
        return f"did not accept it within {timeout:g} s"
    if isinstance(error, smtplib.SMTPAuthenticationError):
        return f"rejected the user name or password ({error.smtp_code})"
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return f"rejected every recipient ({', '.join(sorted({str(code) for code, _ in error.recipients.values()}))})"
    if isinstance(error, smtplib.SMTPSenderRefused):
        return f"rejected the sender ({error.smtp_code})"
    if isinstance(error, smtplib.SMTPNotSupportedError):
        return "does not support STARTTLS, or offers no login method that Oncehook supports: check tls and user"
    if isinstance(error, smtplib.SMTPResponseException):
        return f"rejected it ({error.smtp_code})"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has no valid certificate ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"does not speak TLS ({error.reason or type(error).__name__}): check tls"
    if isinstance(error, smtplib.SMTPServerDisconnected):
        return "closed the connection"
    return f"cannot be reached: {getattr(error, 'strerror', None) or type(error).__name__}"


def compose_mail(message: Message, sender: str, to: tuple[str, ...]) -> EmailMessage:
    mail = EmailMessage()
    mail["Subject"] = f"[oncehook] {message.title}"
    mail["From"], mail["To"] = sender, ", ".join(to)
    mail["Message-ID"] = f"<{message.id}@oncehook.invalid>"
    mail["Date"] = format_datetime(time_of(message.at))
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content("\n\n".join(part for part in (message.summary, message.remedy, message.link) if part) + "\n")
    return mail
