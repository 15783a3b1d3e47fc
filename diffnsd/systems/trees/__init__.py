"""Trees of joints."""
