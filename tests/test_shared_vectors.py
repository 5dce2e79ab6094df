"""The shared provider vectors, run where they are: ONCEHOOK_VECTORS names their folder, and none is copied here.

Without the variable this file has no tests. Where our verdict, id or type is another than a vector's, that is in one
table with its reason: a difference that is not there fails, and so does an entry whose difference went away.
"""

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from oncehook.errors import Rejected
from oncehook.extract import look_up, moment
from oncehook.providers.certificates import Certificates
from oncehook.receipt import Delivery
from oncehook.settings import read_source
from oncehook.source import Source

PROVIDERS = {
    "stripe": "stripe",
    "github": "github",
    "shopify": "shopify",
    "slack": "slack",
    "sendgrid": "sendgrid",
    "aws_sns_ses": "ses",
    "postmark": "postmark",
    "mailgun": "mailgun",
    "standard_webhooks": "standard-webhooks",
}


@dataclass(frozen=True)
class Ours:
    """What we say in place of a vector, and why."""

    reason: str
    valid: bool = True
    readable: bool = True
    id: str | None = None
    type: str | None = None


DIFFERENCES = {
    ("github", "legacy-sha1"): Ours("SHA-1 is refused: SHA-256 has come with every delivery since 2020", valid=False),
    ("github", "docs-hello-world"): Ours("authentic but not JSON, as the documentation has it: 400", readable=False),
    ("github", "real-payload-issues"): Ours("our type is the event and its action", type="issues.edited"),
    ("mailgun", "legacy-form"): Ours(
        "the id is the token of the form itself; the vector repeats that of its JSON cases",
        id="1234567890abcdef1234567890abcdef",
    ),
    ("mailgun", "BODY-FORGED-BUT-SIGNATURE-OK"): Ours(
        "the body is not signed, so it says what was forged", type="complained"
    ),
    ("aws_sns_ses", "generated-SubscriptionConfirmation"): Ours(
        "the message is of 2012 and its certificate of 2020; valid under a pinned key", valid=False
    ),
    ("aws_sns_ses", "generated-UnsubscribeConfirmation"): Ours(
        "the message is of 2012 and its certificate of 2020; valid under a pinned key", valid=False
    ),
    ("aws_sns_ses", "ses-bounce-in-sns-v1"): Ours(
        "the certificate's path has ten digits where SNS has thirty-two: not fetched; valid under a pinned key",
        valid=False,
        type="Bounce",
    ),
}


@dataclass(frozen=True)
class Case:
    file: str
    vector: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.file}-{self.vector['name']}"

    @property
    def ours(self) -> Ours | None:
        return DIFFERENCES.get((self.file, self.vector["name"]))

    @property
    def delivery(self) -> Delivery:
        return Delivery.of(self.vector["body"].encode(), self.vector["headers"])

    def source(self, *, pinned: bool = False) -> Source:
        """A source with the vector's key; for SNS the key is what the certificate's address would serve."""
        key = self.vector["secret_or_key"]
        settings: dict[str, Any] = {
            "provider": PROVIDERS[self.file],
            "secrets": key if isinstance(key, list) else [key],
        }
        if self.vector["scheme"] == "sns":
            settings |= {"topics": ["*"], "secrets": [key] if pinned else []}
        served = Certificates(fetch=lambda url: str(key).encode())
        return Source("here", read_source("here", settings), max_body=2**20, certificates=served)

    def now(self, source: Source) -> float:
        """The moment of the vector, or of the delivery itself where it has none."""
        where = source.provider.timestamp
        if self.vector["now"] is not None or where is None:
            return float(self.vector["now"] or 0)
        if where.header:
            stamp: Any = self.delivery.headers.get(where.header.lower().encode(), b"").decode()
        else:
            parsed = source.parse(self.delivery)
            stamp = next(filter(None, (look_up(parsed, path.split(".")) for path in (where.body or "").split("|"))), "")
        read = moment(str(stamp))
        return read.timestamp() if read else 0.0


def load() -> list[Case]:
    folder = os.environ.get("ONCEHOOK_VECTORS")
    if not folder:
        return []
    return [
        Case(file, one)
        for file in PROVIDERS
        for one in json.loads((Path(folder) / f"{file}.json").read_text())["cases"]
    ]


CASES = load()
__test__ = bool(CASES)
SIGNED_BY_SNS = [case for case in CASES if case.vector["scheme"] == "sns" and case.vector["valid"]]


def verdict(case: Case, source: Source) -> bool:
    verifier = source.verifier
    assert verifier is not None
    try:
        wanted = verifier.certificate_wanted(case.delivery)
        if wanted:
            asyncio.run(source.certificates.ensure(wanted))
        verifier.verify(case.delivery, case.now(source))
    except Rejected:
        return False
    return True


def facts(case: Case, source: Source) -> tuple[Any, Any]:
    """Id and type as they are found; lists of them for a batch."""
    parsed, headers = source.parse(case.delivery), case.delivery.headers
    if source.split is None:
        return source.find_id(parsed, headers), source.find_type(parsed, headers)
    claims = source.read(case.delivery, parsed)
    return [claim.event_id for claim in claims], [claim.type for claim in claims]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_our_verdict_id_and_type_are_the_vectors(case: Case) -> None:
    source, vector, ours = case.source(), case.vector, case.ours
    assert verdict(case, source) == (vector["valid"] if ours is None else ours.valid)
    if not vector["valid"] or (ours is not None and not ours.valid):
        return
    if ours is not None and not ours.readable:
        with pytest.raises(Rejected):
            source.parse(case.delivery)
        return
    assert_facts(case, source)


@pytest.mark.parametrize("case", SIGNED_BY_SNS, ids=str)
def test_under_a_pinned_key_every_authentic_message_verifies(case: Case) -> None:
    source = case.source(pinned=True)
    assert verdict(case, source)
    assert_facts(case, source)


def assert_facts(case: Case, source: Source) -> None:
    id_, type_ = facts(case, source)
    ours = case.ours or Ours("")
    assert id_ == (ours.id or case.vector["expected_event_id"])
    if case.vector["expected_type"] is not None:
        assert type_ == (ours.type or case.vector["expected_type"])


def test_every_difference_in_the_table_is_one() -> None:
    by_name = {(case.file, case.vector["name"]): case.vector for case in CASES}
    for key, ours in DIFFERENCES.items():
        vector = by_name[key]
        assert ours.reason
        differs = (
            ours.valid != vector["valid"],
            not ours.readable,
            ours.id is not None and ours.id != vector["expected_event_id"],
        )
        assert any(differs) or ours.type not in (None, vector["expected_type"])
