"""The clock, calls into user code, shutdown of running tasks, wake-ups inside one process."""
