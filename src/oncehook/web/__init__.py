"""What `oncehook serve` answers beside the door."""
