"""Reads XML in base64, which some senders put into a form field. Entities and document types are rejected."""

import base64
import binascii
from typing import TYPE_CHECKING, Any

from oncehook.providers.expressions import NotReadable, TooDeep

if TYPE_CHECKING:
    from xml.parsers.expat import XMLParserType

DEEPEST = 64


def read_xml(encoded: str) -> Any:
    """Read XML in base64 as plain data: a string, or a dict of child elements. The last element of a name wins.

    Raises NotReadable or TooDeep. A document type is rejected, because attacks on XML parsers use its entities.
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
        parser.StartDoctypeDeclHandler = _reject_doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = lambda text: self.stack[-1][1].append(text)
        parser.Parse(content, True)
        return self.stack[0][0]

    def _start(self, name: str, attributes: Any) -> None:
        if len(self.stack) > DEEPEST:
            raise TooDeep("nested too deeply")
        self.stack.append(({}, []))

    def _end(self, name: str) -> None:
        table, texts = self.stack.pop()
        self.stack[-1][0][name] = table or "".join(texts).strip()


def _reject_doctype(*_: Any) -> None:
    raise NotReadable("a document type is not allowed")
