"""Suppressions as CSV: an export can be imported again, and a spreadsheet runs nothing in it."""

import io

import pytest

from oncehook.email import suppression_csv
from oncehook.email.suppression_csv import NotImportable
from oncehook.email.suppressions import SuppressionChange

ROW = {"address": "jane@example.com", "reason": "hard_bounce", "since": "2025-11-01T00:00:00.000000Z", "source": "ses",
       "event": "k1", "note": None}  # fmt: skip


def read(text: str) -> list[SuppressionChange]:
    return list(suppression_csv.read(io.StringIO(text)))


def test_export_starts_with_the_header_and_quotes_values() -> None:
    lines = list(suppression_csv.write([{**ROW, "note": 'said "no", twice'}]))
    assert lines == [
        "address,reason,since,source,event,note\n",
        'jane@example.com,hard_bounce,2025-11-01T00:00:00.000000Z,ses,k1,"said ""no"", twice"\n',
    ]


def test_export_is_imported_as_it_was() -> None:
    text = "".join(suppression_csv.write([{**ROW, "note": "=1+1"}, {**ROW, "note": "'-x"}]))
    first, second = read(text)
    assert (first.address, first.reason, first.since, first.note) == (
        "jane@example.com", "hard_bounce", "2025-11-01T00:00:00.000000Z", "=1+1"
    )  # fmt: skip
    assert second.note == "'-x"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\tx", "'=1"])
def test_formula_is_escaped_except_in_an_address(text: str) -> None:
    _, line = suppression_csv.write([{**ROW, "address": "=a@example.com", "note": text}])
    assert line.startswith("=a@example.com,"), "other systems read the address"
    assert f"'{text}" in line


def test_columns_of_other_systems_are_read() -> None:
    (change,) = read("Created_At, EMAIL ,x\n2025-11-01T00:00:00Z,jane@example.com,1\n\n")
    assert change == SuppressionChange("jane@example.com", since="2025-11-01T00:00:00.000000Z")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name\nx\n", "the first line must name the columns, and one of them must be address or email or recipient"),
        ("", "the first line must name the columns"),
        ("email\njane@example.com\nno address\n", "line 3: 'no address' is not an email address"),
        ("email,since\njane@example.com,soon\n", "line 2: 'soon' is not a time"),
    ],
)
def test_invalid_file_is_an_error_that_names_the_line(text: str, message: str) -> None:
    with pytest.raises(NotImportable, match=message):
        read(text)


def test_file_that_is_not_utf_8_is_an_error() -> None:
    with pytest.raises(NotImportable, match="the file is not UTF-8"):
        list(suppression_csv.read(io.TextIOWrapper(io.BytesIO(b"email\nj\xe4ne@example.com\n"), "utf-8")))


def test_hash_of_a_forgotten_address_is_imported() -> None:
    hashed = "sha256:" + "0" * 64
    assert read(f"address\n{hashed}\n")[0].address == hashed
