"""Model cards and the Hub."""
