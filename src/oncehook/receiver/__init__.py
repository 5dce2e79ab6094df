"""HTTP in: check, verify, read, claim, acknowledge."""
