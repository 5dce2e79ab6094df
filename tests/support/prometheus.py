"""Reads the text format of Prometheus."""

Figures = dict[str, float]


def parse_metrics(text: bytes) -> Figures:
    """Return the samples of Prometheus' text format."""
    lines = [line.rpartition(" ") for line in text.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}
