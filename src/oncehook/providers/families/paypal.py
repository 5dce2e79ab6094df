"""PayPal: named headers and the body's CRC-32, under a pinned key or the certificate that the headers name."""

from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers.expressions import moment
from oncehook.providers.families import Keys, Match, Surroundings
from oncehook.providers.families import paypal_form as paypal
from oncehook.providers.signatures import algorithm
from oncehook.providers.template import Body


class PayPalCheck:
    """RSA with SHA-256 over the transmission's id, its time, the webhook's id and the CRC-32 of the body."""

    stamped = True
    guarded = paypal.SIGNED

    def __init__(self, keys: Keys, surroundings: Surroundings) -> None:
        self.keys = keys
        self.webhook_id = surroundings.webhook_id
        self.sandbox = surroundings.sandbox
        self.certificates = surroundings.certificates
        self.verify = algorithm("rsa-sha256").verify

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        if delivery.repeated and not paypal.SIGNED.isdisjoint(delivery.repeated):
            raise Rejected("malformed", "a header of the signature came twice")
        message = self._message(delivery)
        if message is None:
            return None
        given = (delivery.headers[paypal.SIGNATURE],)
        for index, key in self.keys or self._fetched(delivery):
            if self.verify(key, message, given, "base64"):
                return index, delivery.headers[paypal.TIME]
        return None

    def wanted(self, delivery: Delivery, body: Body) -> str | None:
        if self.keys or self._message(delivery) is None:
            return None
        return paypal.certificate_url(delivery.headers, sandbox=self.sandbox)

    def stamp(self, delivery: Delivery, body: Body) -> bytes | None:
        return delivery.headers.get(paypal.TIME)

    def _message(self, delivery: Delivery) -> bytes | None:
        named = delivery.headers.get(paypal.ALGORITHM, b"")
        if named != b"SHA256withRSA" or paypal.SIGNATURE not in delivery.headers:
            return None
        return paypal.signed_message(delivery.headers, delivery.body, self.webhook_id)

    def _fetched(self, delivery: Delivery) -> Keys:
        url = paypal.certificate_url(delivery.headers, sandbox=self.sandbox)
        certificate = self.certificates.get(url) if url else None
        signed = moment(delivery.headers[paypal.TIME].decode("latin-1"))
        if certificate is None or signed is None:
            return ()
        if not certificate.not_valid_before_utc <= signed <= certificate.not_valid_after_utc:
            return ()
        return ((0, certificate.public_key()),)
