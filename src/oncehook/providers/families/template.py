"""A signature over a template of the request: most providers, and the hot path."""

from collections.abc import Callable, Sequence

from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers.definition import Signature, Timestamp
from oncehook.providers.families import MOST_SIGNATURES, Keys, Match
from oncehook.providers.signatures import algorithm
from oncehook.providers.template import Body, Template, compile_paths

Given = tuple[Sequence[bytes], bytes | None]  # the signatures in the request, and its timestamp
_NONE: Given = (), None


class TemplateCheck:
    """A signature, encoded in a header or in the body, over a template of the request."""

    def __init__(self, signature: Signature, timestamp: Timestamp | None, keys: Keys) -> None:
        timestamp = timestamp if signature.timestamp else None
        self.stamped = timestamp is not None
        self.keys = keys
        self.verify = algorithm(signature.algorithm).verify
        self.encoding = signature.encoding
        template = Template(signature.template)
        self.fill = template.fill
        self.header = _header(signature.header or "")
        self.prefix = signature.prefix.encode()
        between = signature.fields and (signature.fields.strip() or signature.fields)  # blanks around it say nothing
        self.separator = (between or signature.separator or "").encode()
        self.field = (signature.field or "").encode()
        self.paths = compile_paths(signature.body or "")
        stamp = timestamp or Timestamp()
        self.stamp_header = _header(stamp.header or "")
        self.stamp_field = stamp.field.encode() if stamp.field else None
        self.stamp_paths = compile_paths(stamp.body) if stamp.body else None
        self.guarded = {name for name in (self.header, self.stamp_header, *template.headers) if name}
        self.find: Callable[[Delivery, Body], Given] = self._find_in_header
        if self.header.endswith(b"*"):
            self.header = self.header[:-1]
            self.guarded.discard(self.header + b"*")
            self.find = self._find_in_headers
        elif signature.fields is not None:
            self.find = self._find_in_fields
        elif signature.header is None:
            self.find = self._find_in_body

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        if delivery.repeated and not self.guarded.isdisjoint(delivery.repeated):
            raise Rejected("malformed", "a header of the signature came twice")
        given, stamp = self.find(delivery, body)
        if not given:
            return None
        message = self.fill(delivery, body, stamp)
        if message is not None:
            for index, key in self.keys:
                if self.verify(key, message, given, self.encoding):
                    return index, stamp
        return None

    def _find_in_header(self, delivery: Delivery, body: Body) -> Given:
        value = delivery.headers.get(self.header)
        if value is None:
            return _NONE
        parts = value.split(self.separator, MOST_SIGNATURES + 1) if self.separator else [value]
        return self._bare(parts), self._stamp(delivery, body)

    def _find_in_fields(self, delivery: Delivery, body: Body) -> Given:
        """Fields such as `t=…,v1=…,v1=…`: the signatures, and the timestamp if it is the only one of its name."""
        signatures, stamps = [], []
        for part in delivery.headers.get(self.header, b"").split(self.separator, 2 * MOST_SIGNATURES):
            name, _, value = part.partition(b"=")
            name = name.strip(b" ")
            if name == self.field:
                signatures.append(value)
            elif name == self.stamp_field:
                stamps.append(value)
        if self.stamp_field is None:
            return self._bare(signatures), self._stamp(delivery, body)
        return self._bare(signatures), stamps[0] if len(stamps) == 1 else None

    def _find_in_headers(self, delivery: Delivery, body: Body) -> Given:
        """A header a signature, with a number at the end of its name: `X-DocuSign-Signature-1` and so on."""
        found = []
        for name, value in delivery.headers.items():
            if name.startswith(self.header) and name[len(self.header) :].isdigit():
                if name in delivery.repeated:
                    raise Rejected("malformed", "a header of the signature came twice")
                found.append(value)
        return self._bare(found), self._stamp(delivery, body)

    def _find_in_body(self, delivery: Delivery, body: Body) -> Given:
        value = body.at(self.paths)
        return _NONE if value is None else (self._bare([value]), self._stamp(delivery, body))

    def _bare(self, signatures: list[bytes]) -> list[bytes]:
        """Signatures without their prefix; those without the prefix are of another scheme."""
        if len(signatures) > MOST_SIGNATURES:
            raise Rejected("malformed", f"more than {MOST_SIGNATURES} signatures")
        prefix = self.prefix
        return [one[len(prefix) :] for one in signatures if one.startswith(prefix)] if prefix else signatures

    def _stamp(self, delivery: Delivery, body: Body) -> bytes | None:
        if self.stamp_header:
            return delivery.headers.get(self.stamp_header)
        return None if self.stamp_paths is None else body.at(self.stamp_paths)


def _header(name: str) -> bytes:
    return name.strip().lower().encode()
