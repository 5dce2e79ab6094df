"""Worked examples. Each is a project that runs with one command and is tested with the others."""
