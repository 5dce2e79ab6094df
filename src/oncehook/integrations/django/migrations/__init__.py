"""Django migrations that run the same SQL files as `oncehook migrate`."""
