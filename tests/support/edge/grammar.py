"""Generates connections: requests as a client, a broken client or an attacker writes them, cut into pieces.

A connection is a list of steps: bytes, or a pause. Bytes between two pauses arrive in one piece. A seed and a number
make the same connection at any time, but for the time in its signatures.
"""

import enum
from dataclasses import dataclass
from hashlib import sha256
from random import Random

from tests.support.edge.deliveries import Signed, make_delivery
from tests.support.edge.odd_parts import GARBAGE, HEADERS, METHODS, PATHS, SIZES, TRAILERS, VERSIONS


class Pause(enum.Enum):
    SOON = "soon"  # the next piece arrives at the next turn of the event loop
    QUIET = "quiet"  # the next piece arrives when the server has answered everything that is complete


Step = bytes | Pause


@dataclass(frozen=True)
class Connection:
    """What one client sends."""

    seed: int
    number: int
    steps: tuple[Step, ...]
    requests: int
    aborts: bool = False  # the client disconnects while its last requests may be under way
    authentic: frozenset[bytes] = frozenset()  # digests of bodies that were signed with the right secret

    @property
    def name(self) -> str:
        return f"c{self.seed}-{self.number}-"

    def pieces(self) -> list[Step]:
        """The steps, with neighboring bytes joined."""
        joined: list[Step] = []
        for step in self.steps:
            if isinstance(step, bytes) and joined and isinstance(joined[-1], bytes):
                joined[-1] += step
            else:
                joined.append(step)
        return joined


def make_connection(seed: int, number: int, now: int) -> Connection:
    random = Random(seed * 1_000_003 + number)
    name, authentic = f"c{seed}-{number}-", set()
    steps: list[Step] = []
    earlier: list[Signed] = []
    count = random.choice([1, 1, 1, 2, 2, 3, 5])
    for index in range(count):
        if earlier and random.random() < 0.25:
            delivery = random.choice(earlier)  # the same event again
        else:
            delivery = make_delivery(random, f"{name}{index}", now)
            earlier.append(delivery)
        if delivery.is_authentic:
            authentic.add(sha256(delivery.body).digest())
        steps += _request(random, delivery)
        if random.random() < 0.02:
            steps.append(random.choice(GARBAGE))
        if random.random() < 0.5:
            steps.append(random.choice(list(Pause)))
    if random.random() < 0.05:
        steps = _damage(random, steps)
    cut = _cut(random, steps) if random.random() < 0.5 else steps
    return Connection(seed, number, tuple(cut), count, random.random() < 0.04, frozenset(authentic))


def _request(random: Random, delivery: Signed) -> list[Step]:
    """One request, as steps: its request line, each header, the framing and the body."""
    odd = random.random() < 0.4
    method, path, version = "POST", delivery.path, "HTTP/1.1"
    headers = [("Host", "test"), *delivery.headers]
    if odd:
        if random.random() < 0.2:
            method = random.choice(METHODS)
        if random.random() < 0.25:
            path = random.choice(PATHS)
        if random.random() < 0.15:
            version = random.choice(VERSIONS)
        if random.random() < 0.1:
            del headers[random.randrange(len(headers))]
        if random.random() < 0.05:
            headers.append(random.choice(headers))
        for _ in range(random.choice([0, 1, 1, 2])):
            headers.insert(random.randrange(len(headers) + 1), random.choice(HEADERS))
        if random.random() < 0.01:
            headers += [(f"X-{number}", "1") for number in range(random.choice([190, 200, 300]))]
    length, body = _framing(random, delivery.body, odd)
    headers.insert(random.randrange(len(headers) + 1), length) if length else None
    end = "\r\n" if not odd or random.random() < 0.97 else random.choice(["\n", "\r"])
    lines: list[Step] = [f"{method} {path} {version}{end}".encode("latin-1")]
    if random.random() < 0.3:
        random.shuffle(headers)
    space = ": " if random.random() < 0.9 else random.choice([":", ":\t", ":   "])
    lines += [f"{name}{space}{value}{end}".encode("latin-1") for name, value in headers]
    return [*lines, end.encode(), *body]


def _framing(random: Random, body: bytes, odd: bool) -> tuple[tuple[str, str] | None, list[Step]]:
    """The header that says where the body ends, and the body as it is sent."""
    kind = random.random()
    if kind < 0.7:
        return ("Content-Length", str(len(body))), [body]
    if kind < 0.9 or not odd:
        return ("Transfer-Encoding", random.choice(["chunked", "Chunked"])), _chunks(random, body, odd)
    if kind < 0.93:
        return ("Content-Length", str(max(0, len(body) + random.choice([-1, 1, -9, 50])))), [body]
    if kind < 0.96:  # both: a smuggled request, if two programs read it in two ways
        both = f"{len(body)}\r\nTransfer-Encoding: chunked"
        return ("Content-Length", both), random.choice([[body], _chunks(random, body, odd)])
    return None, [body] if random.random() < 0.5 else []


def _chunks(random: Random, body: bytes, odd: bool) -> list[Step]:
    steps: list[Step] = []
    while body:
        size = random.choice([1, 7, 100, 1000, 100_000])
        chunk, body = body[:size], body[size:]
        form = random.choice(SIZES) if odd and random.random() < 0.03 else "%x"
        steps += [(form % len(chunk)).encode(), b"\r\n", chunk, b"\r\n"]
        if len(steps) > 200:
            chunk, body = body, b""
            steps += [b"%x\r\n" % len(chunk), chunk, b"\r\n"] if chunk else []
    steps.append(b"0\r\n")
    if random.random() < 0.1:
        steps.append(random.choice(TRAILERS))
    return [*steps, b"\r\n"] if not odd or random.random() < 0.97 else steps


def _damage(random: Random, steps: list[Step]) -> list[Step]:
    """Change the bytes at random: lose, double, swap or cut them off."""
    changed = list(steps)
    index = random.randrange(len(changed))
    step = changed[index]
    match random.randrange(4):
        case 0:
            del changed[index]
        case 1:
            changed.insert(index, step)
        case 2:
            del changed[index + 1 :]
        case _ if isinstance(step, bytes) and step:
            at = random.randrange(len(step))
            changed[index] = step[:at] + bytes([random.randrange(256)]) + step[at + 1 :]
    return changed


def _cut(random: Random, steps: list[Step]) -> list[Step]:
    """Split some of the steps, with a pause between the parts."""
    cut: list[Step] = []
    chance = random.choice([0.05, 0.2, 0.8])
    for step in steps:
        if isinstance(step, bytes) and step and random.random() < chance and len(cut) < 60:
            at = random.randrange(len(step) + 1)
            cut += [step[:at], random.choice(list(Pause)), step[at:]]
        else:
            cut.append(step)
    return cut
