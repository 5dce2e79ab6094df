"""Mutation testing: changes one place of the source at a time, and checks that a test fails. See docs/mutation.md."""
