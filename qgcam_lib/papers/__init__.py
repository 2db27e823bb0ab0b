"""What belongs to one paper alone."""
