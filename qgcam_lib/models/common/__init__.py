"""What the model families share: devices, pictures, words, checkpoints, the zoo, sources of weights, adapters."""
