"""Braintree: the signature beside the public key, and the keys of a source."""

from urllib.parse import parse_qs, urlencode

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
