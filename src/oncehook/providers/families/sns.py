"""Amazon SNS: named fields of the body, under a fetched certificate."""

import re
from collections.abc import Mapping, Sequence

from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers.certificates import Certificates
from oncehook.providers.expressions import moment
from oncehook.providers.families import Keys, Match
from oncehook.providers.families.sns_form import NAMES, certificate_url, signed_message
from oncehook.providers.signatures import algorithm
from oncehook.providers.template import Body


class SnsCheck:
    """Amazon SNS: the named fields of the body under a pinned key, or under the certificate that they name."""

    stamped = True

    def __init__(self, keys: Keys, certificates: Certificates, topics: Sequence[re.Pattern[str]]) -> None:
        self.keys = keys
        self.certificates = certificates
        self.topics = topics

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        fields = self._fields(body)
        message = signed_message(fields)
        if message is None:
            return None
        check = algorithm("rsa-sha1" if fields["SignatureVersion"] == "1" else "rsa-sha256")
        given = (fields["Signature"].encode("utf-8", "surrogatepass"),)
        for index, key in self.keys or self._fetched(fields):
            if check.verify(key, message, given, "base64"):
                return index, fields["Timestamp"].encode("utf-8", "surrogatepass")
        return None

    def wanted(self, delivery: Delivery, body: Body) -> str | None:
        """Nothing is fetched for a stranger: what is not for a topic of this source needs no certificate."""
        fields = self._fields(body)
        return None if self.keys or signed_message(fields) is None else certificate_url(fields)

    def stamp(self, delivery: Delivery, body: Body) -> bytes | None:
        return self._fields(body).get("Timestamp", "").encode("utf-8", "surrogatepass")

    def _fields(self, body: Body) -> Mapping[str, str]:
        """The fields of a message that could be for this source; none if it is no such message."""
        fields = body.texts(NAMES) or {}
        if fields.get("SignatureVersion") not in ("1", "2") or "Signature" not in fields:
            return {}
        if not any(topic.fullmatch(fields.get("TopicArn", "")) for topic in self.topics):
            raise Rejected("bad_signature", "the topic is not in the source's topics")
        return fields

    def _fetched(self, fields: Mapping[str, str]) -> Keys:
        url = certificate_url(fields)
        certificate = self.certificates.get(url) if url else None
        signed = moment(fields["Timestamp"])
        if certificate is None or signed is None:
            return ()
        if not certificate.not_valid_before_utc <= signed <= certificate.not_valid_after_utc:
            return ()
        return ((0, certificate.public_key()),)
