"""Intake from brokers: events that wait in a queue between their ack and their claim, or that others put there."""
