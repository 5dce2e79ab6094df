"""What users write against: events, handler registration, the outbox, ordering, forwards."""
