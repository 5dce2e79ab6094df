"""Log lines, metrics, traces, latencies at the receiver, the version of the running code."""
