"""Log lines, metrics, traces, ack latencies, and the version of the running code."""
