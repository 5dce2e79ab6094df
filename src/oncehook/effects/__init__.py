"""Effects: side effects outside the database. The registry of their functions, and the relay that runs them."""
