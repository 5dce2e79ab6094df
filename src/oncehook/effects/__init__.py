"""Side effects outside the database: their registry, and the relay that performs them after commit."""
