"""The API that users write against: events, registration, typed payloads, the outbox, ordering, forwards."""
