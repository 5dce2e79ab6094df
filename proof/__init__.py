"""The proof: a model of the inbox that TLC checks, and a simulation that runs the real code under faults."""
