"""RelComp: losses, fine-tuning of one or both encoders, interpolation of the weights, and the scores at each alpha."""
