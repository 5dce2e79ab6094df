"""Deliveries under faults: real processes, real databases, and senders that repeat and reorder what they send."""
