"""What users write against: events, handler registration, typed payloads, the outbox, ordering, forwards."""
