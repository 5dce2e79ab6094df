"""Microsoft Graph: clientState in each notification, and the tokens of those that carry resource data."""

from collections.abc import Sequence

import msgspec

from oncehook.concurrency.clock import SYSTEM
from oncehook.model.delivery import Delivery
from oncehook.providers.certificates import Wanted
from oncehook.providers.definition import Signature
from oncehook.providers.families import Keys, Match, Surroundings
from oncehook.providers.families import graph_form as graph
from oncehook.providers.families.each import EachCheck, read_elements
from oncehook.providers.signatures import algorithm
from oncehook.providers.template import Body, read_field

_text = msgspec.json.Decoder(str).decode


class GraphCheck(EachCheck):
    """Every clientState is right, and so is every token; resource data without a token is refused."""

    def __init__(self, signature: Signature, keys: Keys, surroundings: Surroundings) -> None:
        super().__init__(signature, keys)
        self.app_id = surroundings.app_id
        self.certificates = surroundings.certificates
        self.verify_token = algorithm("rsa-sha256").verify

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        found = super().matches(delivery, body)
        if found is None:
            return None
        tokens = self._tokens(body)
        if tokens is None or not all(self._is_genuine(token) for token in tokens):
            return None
        return found if tokens or not self._has_resource_data(body) else None

    def wanted(self, delivery: Delivery, body: Body) -> Wanted | None:
        """Nothing is fetched for a stranger: clientState comes first."""
        if super().matches(delivery, body) is None:
            return None
        missing = (graph.wanted(token.key_name) for token in self._tokens(body) or ())
        return next((one for one in missing if self.certificates.get(one.name) is None), None)

    def stamp(self, delivery: Delivery, body: Body) -> bytes | None:
        return None

    def _tokens(self, body: Body) -> Sequence[graph.Token] | None:
        """The tokens beside the notifications; None if one of them is none for this application."""
        raw = body.raw(("validationTokens",))
        if raw is None or raw == b"null":
            return ()
        elements = read_elements(raw)
        if elements is None or len(elements) > graph.MOST_TOKENS:
            return None
        try:
            tokens = [graph.Token(_text(element)) for element in elements]
        except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError):
            return None
        now = SYSTEM.now()
        return tokens if all(token.is_for(self.app_id, now) for token in tokens) else None

    def _is_genuine(self, token: graph.Token) -> bool:
        key = self.certificates.get(graph.wanted(token.key_name).name)
        return key is not None and self.verify_token(key, token.message, (token.signature.hex().encode(),), "hex")

    def _has_resource_data(self, body: Body) -> bool:
        return any(read_field(element, "encryptedContent") is not None for element in self._elements(body))
