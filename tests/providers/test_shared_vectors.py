"""The shared provider vectors, run from the folder in ONCEHOOK_VECTORS. None is copied here.

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

from oncehook.config.configuration import read_source
from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers.certificates import Certificates
from oncehook.providers.expressions import look_up, parse_time
from oncehook.providers.source import Source
from tests.providers.test_certificates import serving

OTHER_NAMES = {"aws_sns_ses": "ses", "generic_hmac": "generic"}
NOT_OURS = {"schemes"}  # no cases in it
GENERIC = {
    "signatures": [{"algorithm": "hmac-sha256", "header": "X-Webhook-Signature", "template": "{timestamp}.{body}"}],
    "timestamp": {"header": "X-Webhook-Timestamp"},
    "event": {"id": "id", "type": "type"},
}


@dataclass(frozen=True)
class Ours:
    """Oncehook's result where it differs from a vector, and the reason."""

    reason: str
    valid: bool = True
    readable: bool = True
    id: Any = None
    type: Any = None


NOT_JSON = "authentic but not JSON, as the sender's library tests it: 400"
COMPOSED = "the id is composed, with | between its parts"
PLAIN_HASH = "versions 1 and 2 are plain hashes, which sign no time; version 3 comes with every request"
SECONDS = "five seconds are too few where clocks differ, and an event counts once anyway: 300 here"

DIFFERENCES = {
    ("adyen", "item-hmac"): Ours(COMPOSED, id="7914073381342284|AUTHORISATION|true"),
    ("asana", "valid"): Ours("our type names the resource too", type=["task.changed"]),
    ("bitbucket", "docs-hello-world"): Ours(NOT_JSON, readable=False),
    ("hubspot", "v1"): Ours(PLAIN_HASH, valid=False),
    ("hubspot", "v2"): Ours(PLAIN_HASH, valid=False),
    ("hubspot", "v2-get"): Ours(PLAIN_HASH, valid=False),
    ("hubspot", "v3"): Ours(NOT_JSON, readable=False),
    ("hubspot", "v3-batch"): Ours(
        "eventId is not unique by itself",
        id=["3816279340|25|1246965|1462216307945", "3816279480|22|1246978|1462216307945"],
    ),
    ("jira", "docs-hello-world"): Ours(NOT_JSON, readable=False),
    ("linear", "valid"): Ours("our type is the type and its action", type="Comment.create"),
    ("mandrill", "batch-url-with-basic-auth"): Ours(
        "_id is the message's: event and time are parts of the key",
        id=["send|abcdef012345789abcdef012345789|1461095246", "hard_bounce|b2|1461095247"],
    ),
    ("mandrill", "test-webhook-key-ping"): Ours("it holds no event", id=[], type=[]),
    ("meta", "valid"): Ours(
        "an entry may hold many messages: the hash of the entry is the key",
        id=["fdb1ba29bb4c1f837a46db1ed6ba9ea9400645a767f8e8810bbf52ad601fa287"],
    ),
    ("paddle", "multi-h1-multi-secret"): Ours(NOT_JSON, readable=False),
    ("paddle", "standard_payload-6s-late"): Ours(SECONDS, valid=True),
    ("paddle", "special_chars_payload-6s-late"): Ours(SECONDS, valid=True),
    ("twitch", "challenge"): Ours("a handshake, which is answered and never read", type="channel.follow"),
    ("zendesk", "empty-body (GET/DELETE webhooks)"): Ours("only POST with a body is an event", readable=False),
    ("github", "legacy-sha1"): Ours("SHA-1 is rejected: SHA-256 has come with every delivery since 2020", valid=False),
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
    def is_batch(self) -> bool:
        """Whether the vector lists several ids and types, or Oncehook splits the body."""
        expected = (self.vector["expected_event_id"], self.vector["expected_type"])
        return self.file not in ("cloudevents", "adyen") or any(isinstance(one, list) for one in expected[1:])

    @property
    def expected_id(self) -> Any:
        """The ids of the vector in Oncehook's spelling."""
        expected = self.vector["expected_event_id"]
        if self.file != "cloudevents" or expected is None:
            return expected
        return ["|".join(one) for one in expected] if self.is_batch else "|".join(expected)

    @property
    def provider(self) -> str:
        return OTHER_NAMES.get(self.file, self.file.replace("_", "-"))

    @property
    def delivery(self) -> Delivery:
        pairs = [(name.lower().encode(), value.encode("latin-1")) for name, value in self.vector["headers"].items()]
        query = self.vector["url"].partition("?")[2].encode()
        return Delivery(self.vector["body"].encode(), pairs, method=self.vector["method"], query=query)

    def source(self, *, pinned: bool = False) -> Source:
        """A source with the vector's key. For SNS, the key is the certificate at the address in the message."""
        key = self.vector["secret_or_key"]
        secrets = [json.dumps(key) if isinstance(key, dict) else key]
        settings: dict[str, Any] = {"provider": self.provider, "secrets": key if isinstance(key, list) else secrets}
        settings |= {"public_url": self.vector["url"], "verify_token": "t", "topics": ["*"]}
        if self.vector.get("scheme") == "sns" and not pinned:
            settings["secrets"] = []
        if key is None:
            settings |= {"verify": "none", "secrets": []}
        served = Certificates(fetch=serving(str(key).encode()))
        own = {"generic": GENERIC}
        return Source("here", read_source("here", settings), own_providers=own, max_body=2**20, certificates=served)

    def now(self, source: Source) -> float:
        """The time of the vector, or of the delivery if the vector has none."""
        where = source.provider.timestamp
        if self.vector["now"] is not None or where is None:
            return float(self.vector["now"] or 0)
        if where.header and self.provider != "plaid":
            stamp: Any = self.delivery.headers.get(where.header.lower().encode(), b"").decode()
        else:
            parsed = source.parse(self.delivery)
            stamp = next(filter(None, (look_up(parsed, path.split(".")) for path in (where.body or "").split("|"))), "")
        read = parse_time(str(stamp))
        return read.timestamp() if read else 0.0


def load() -> list[Case]:
    folder = os.environ.get("ONCEHOOK_VECTORS")
    if not folder:
        return []
    files = sorted(file for file in Path(folder).glob("*.json") if file.stem not in NOT_OURS)
    return [Case(file.stem, one) for file in files for one in json.loads(file.read_text())["cases"]]


CASES = load()
__test__ = bool(CASES)
SIGNED_BY_SNS = [case for case in CASES if case.vector.get("scheme") == "sns" and case.vector["valid"]]


def verdict(case: Case, source: Source) -> bool:
    verifier = source.verifier
    try:
        if verifier is None:
            source.parse(case.delivery)
            return True
        wanted = verifier.key_to_fetch(case.delivery)
        if wanted:
            asyncio.run(source.certificates.ensure(wanted))
        verifier.verify(case.delivery, case.now(source))
    except Rejected:
        return False
    return True


def facts(case: Case, source: Source) -> tuple[Any, Any]:
    """Id and type of the event; lists of them for a batch."""
    parsed, headers = source.parse(case.delivery), case.delivery.headers
    if source.split is None:
        return source.reader.find_id(parsed, headers), source.reader.find_type(parsed, headers)
    claims = source.read(case.delivery, parsed)
    if not case.is_batch:
        return claims[0].event_id, claims[0].type
    return [claim.event_id for claim in claims], [claim.type for claim in claims]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_result_id_and_type_agree_with_the_shared_vector(case: Case) -> None:
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
def test_every_authentic_message_verifies_with_a_pinned_key(case: Case) -> None:
    source = case.source(pinned=True)
    assert verdict(case, source)
    assert_facts(case, source)


def assert_facts(case: Case, source: Source) -> None:
    id_, type_ = facts(case, source)
    ours = case.ours or Ours("")
    if case.expected_id is not None:
        assert id_ == (case.expected_id if ours.id is None else ours.id)
    if case.vector["expected_type"] is not None:
        assert type_ == (case.vector["expected_type"] if ours.type is None else ours.type)


def test_every_listed_difference_is_a_real_difference() -> None:
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
