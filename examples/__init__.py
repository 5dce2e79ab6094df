"""Examples. Each is a project that runs with one command and has tests."""
