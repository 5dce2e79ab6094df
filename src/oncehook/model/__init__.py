"""Plain values with no I/O: deliveries, receipts and their states, errors, retry policies, type patterns."""
