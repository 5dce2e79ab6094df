"""Effects, which are actions outside the database: the registry of their functions, and the relay that runs them."""
