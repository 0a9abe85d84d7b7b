"""What hostile clients and hostile constraints leave to others."""
