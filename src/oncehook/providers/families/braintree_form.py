"""The form of Braintree: XML in base64 in a form, signed by HMAC-SHA1 under the hash of the private key.

The challenge of its handshake is signed with the same key. So it is only answered where it could never be a payload:
hexadecimal digits decode from base64 to no XML.
"""

import base64
import binascii
import hashlib
import hmac
from typing import TYPE_CHECKING, Any

from oncehook.providers.expressions import NotReadable, TooDeep

if TYPE_CHECKING:
    from xml.parsers.expat import XMLParserType

DEEPEST = 64
MOST_PAIRS = 32


def load_key(secret: str) -> tuple[bytes, bytes]:
    """(public key, what signs) out of `public|private`. Raises ValueError, without the value."""
    public, _, private = secret.strip().partition("|")
    if not public.strip() or not private.strip():
        raise ValueError("it is not public_key|private_key")
    try:
        return public.encode("ascii"), hashlib.sha1(private.encode("ascii")).digest()  # noqa: S324  # theirs, for HMAC
    except UnicodeEncodeError:
        raise ValueError("it is not public_key|private_key") from None


def sign(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha1").hex().encode()


def signature_of(public: bytes, pairs: bytes) -> bytes | None:
    """The signature beside this public key in `public|signature&…`, if there is exactly one."""
    found = []
    for pair in pairs.split(b"&", MOST_PAIRS):
        name, _, signature = pair.partition(b"|")
        if name == public:
            found.append(signature)
    return found[0] if len(found) == 1 else None


# -- XML ------------------------------------------------------------------------------------------------------------


def read_xml(encoded: str) -> Any:
    """XML in base64 as plain data: a text, or a table of its elements; of one name the last counts.

    Raises NotReadable or TooDeep. A document type is refused: entities are how XML attacks its readers.
    """
    from xml.parsers import expat  # only Braintree sends XML

    try:
        return _Reader(expat.ParserCreate()).read(base64.b64decode("".join(encoded.split()), validate=True))
    except (binascii.Error, expat.ExpatError, UnicodeError, ValueError) as error:
        if isinstance(error, TooDeep):
            raise
        raise NotReadable(f"not XML in base64: {type(error).__name__}") from None


class _Reader:
    def __init__(self, parser: "XMLParserType") -> None:
        self.parser = parser
        self.stack: list[tuple[dict[str, Any], list[str]]] = [({}, [])]

    def read(self, content: bytes) -> Any:
        parser = self.parser
        parser.StartDoctypeDeclHandler = _refuse
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = lambda text: self.stack[-1][1].append(text)
        parser.Parse(content, True)
        return self.stack[0][0]

    def _start(self, name: str, attributes: Any) -> None:
        if len(self.stack) > DEEPEST:
            raise TooDeep("nested too deep")
        self.stack.append(({}, []))

    def _end(self, name: str) -> None:
        table, texts = self.stack.pop()
        self.stack[-1][0][name] = table or "".join(texts).strip()


def _refuse(*_: Any) -> None:
    raise NotReadable("a document type is not taken")
