"""The clock, calls into user code, graceful shutdown, and wake-ups within one process."""
