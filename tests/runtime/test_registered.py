"""What an inbox has registered: each inbox has its own, and its shards share it."""

from oncehook.runtime.registered import Registered


def test_two_inboxes_share_nothing() -> None:
    one, two = Registered(), Registered()
    for name in Registered.__slots__:
        assert getattr(one, name) is not getattr(two, name), name
