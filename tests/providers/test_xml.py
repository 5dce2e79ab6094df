"""Reading XML in base64."""

import base64

import pytest

from oncehook.providers.expressions import NotReadable, TooDeep
from oncehook.providers.xml import read_xml


def encoded(xml: str) -> str:
    return base64.b64encode(xml.encode()).decode()


def test_xml_is_read_as_dicts_and_strings() -> None:
    xml = "<n><kind>check</kind><s><t type='a'> 1 </t></s><e/><kind>last</kind></n>"
    assert read_xml(encoded(xml)) == {"n": {"kind": "last", "s": {"t": "1"}, "e": ""}}


@pytest.mark.parametrize(
    "xml",
    [
        "<!DOCTYPE n [<!ENTITY a 'b'>]><n>&a;</n>",
        "<!DOCTYPE n SYSTEM 'file:///etc/passwd'><n/>",
        "<!DOCTYPE n><n/>",
        "<n>&undefined;</n>",
        "<n>",
        "<n></m>",
        "<n/><n/>",
        "",
        "text",
    ],
)
def test_malformed_xml_and_document_types_are_rejected(xml: str) -> None:
    with pytest.raises(NotReadable):
        read_xml(encoded(xml))


def test_xml_that_is_nested_too_deep_raises_too_deep() -> None:
    with pytest.raises(TooDeep):
        read_xml(encoded("<a>" * 100 + "</a>" * 100))


@pytest.mark.parametrize("text", ["!", "A", "é", "PG4vPg", "PG4vPg==="])
def test_payload_that_is_not_base64_is_rejected(text: str) -> None:
    with pytest.raises(NotReadable):
        read_xml(text)
