"""The addresses of sources."""

import pytest
from django.urls import resolve, reverse


@pytest.mark.parametrize("address", ["stripe", "stripe/", "stripe/acme"])
def test_address_of_a_source_leads_to_the_view(address: str) -> None:
    path = reverse("oncehook:receive", args=[address])
    assert path == f"/webhooks/{address}"
    assert resolve(path).kwargs == {"address": address}
