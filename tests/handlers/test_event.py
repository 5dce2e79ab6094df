"""The event that a handler gets: facts, payload, headers and keys."""

from oncehook.handlers.event import make_key

KEYS = {
    "evt_1": "a:evt_1",
    "sha256:" + "0" * 64: "a:sha256:" + "0" * 64,
    "x" * 191: "a:" + "x" * 191,
}


def test_forward_key_is_safe_in_a_header_and_unique_per_event() -> None:
    assert {event_id: make_key("a", event_id) for event_id in KEYS} == KEYS
    odd = ["a.b", "é", "a b", "a\r\nb", "\u2028", "x" * 192, "a,b", '"', "\ud800", "a%20b", ""]
    keys = [make_key("a", event_id) for event_id in odd]
    assert all(key.startswith("a:sha256-") and len(key) == 73 for key in keys)
    everything = [make_key(source, event_id) for source in ("a", "b", "a-b") for event_id in (*KEYS, *odd)]
    assert len(set(everything)) == len(everything)
