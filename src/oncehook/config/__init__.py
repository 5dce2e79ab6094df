"""Settings from `oncehook.toml` and the environment, and references to secrets."""
