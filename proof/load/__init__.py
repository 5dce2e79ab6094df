"""A constant rate of events for minutes, with slow and oversized clients beside it."""
