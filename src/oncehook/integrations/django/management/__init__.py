"""Django looks for management commands here."""
