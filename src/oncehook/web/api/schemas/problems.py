"""The response to a request that was not carried out."""

from msgspec import Struct


class Error(Struct):
    """What was wrong, as a word and as a sentence."""

    code: str
    message: str


class ProblemAnswer(Struct):
    """The answer to whatever was not done."""

    error: Error
