"""The response to a failed request."""

from msgspec import Struct


class Error(Struct):
    """An error code for programs and a message for people."""

    code: str
    message: str


class ProblemResponse(Struct):
    """The body of every error response."""

    error: Error
