"""A source with `email` is registered with the email projection when it is added."""

from pathlib import Path

from oncehook import Inbox


def test_source_with_email_is_projected_and_others_are_not(tmp_path: Path) -> None:
    inbox = Inbox(f"sqlite:///{tmp_path}/inbox.db")
    inbox.source("postmark", secrets=["user:password"], email=True)
    inbox.source("stripe", secrets=["whsec_test"])
    projection = inbox._runtime.email_projection
    assert projection is not None and "postmark" in projection and "stripe" not in projection
    assert set(inbox._runtime.handlers.projecting) == {"postmark"}


def test_forward_handles_the_events_that_no_handler_matches(tmp_path: Path) -> None:
    inbox = Inbox(f"sqlite:///{tmp_path}/inbox.db")
    inbox.source("postmark", secrets=["user:password"], email=True, forward="https://target.example")
    assert inbox._runtime.handlers.projecting == {}
