"""Q-GroundCAM."""
