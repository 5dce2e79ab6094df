"""Braintree: the signature beside the public key, and the keys of a source."""

from urllib.parse import parse_qs, urlencode

import pytest

from oncehook.providers.families.braintree import load_key
from oncehook.providers.template import Body
from tests.support.providers import changed, is_accepted, sender


def test_two_signatures_of_one_public_key_are_rejected() -> None:
    delivery = sender("braintree").compose()
    fields = {name: values[0] for name, values in parse_qs(delivery.body.decode()).items()}
    good = fields["bt_signature"]
    public = good.partition("|")[0]
    for pairs, accepted in (
        (good, True),
        (f"other|{'0' * 40}&{good}", True),
        (f"{good}&{public}|{'0' * 40}", False),
        (f"{public}|{'0' * 40}&{good}", False),
        ("&".join([f"other|{'0' * 40}"] * 40 + [good]), False),
        (good.replace("|", "||"), False),
        ("", False),
    ):
        body = urlencode({**fields, "bt_signature": pairs}).encode()
        assert is_accepted(sender("braintree"), changed(delivery, body=body)) is accepted, pairs


@pytest.mark.parametrize("secret", ["", "public", "public|", "|private", " | ", "public|prívate", "públic|private"])
def test_secret_without_two_ascii_keys_is_an_error(secret: str) -> None:
    with pytest.raises(ValueError, match=r"it is not public_key\|private_key"):
        load_key(secret)


def test_form_without_signature_or_payload_is_rejected() -> None:
    delivery = sender("braintree").compose()
    for name in ("bt_signature", "bt_payload"):
        fields = {key: values[0] for key, values in parse_qs(delivery.body.decode()).items() if key != name}
        assert not is_accepted(sender("braintree"), changed(delivery, body=urlencode(fields).encode()))


def test_signed_content_is_the_payload_without_its_line_break_and_other_fields() -> None:
    family, signature = sender("braintree").signature.family, sender("braintree").signature
    delivery = sender("braintree").compose()
    fields = {key: values[0] for key, values in parse_qs(delivery.body.decode()).items()}
    other = {**fields, "bt_payload": fields["bt_payload"].rstrip("\n"), "extra": "1"}
    contents = {
        family.signed_content(
            signature, changed(delivery, body=body), Body(changed(delivery, body=body), lambda _: True)
        )
        for body in (delivery.body, urlencode(other).encode())
    }
    assert contents == {fields["bt_payload"].rstrip("\n").encode()}
