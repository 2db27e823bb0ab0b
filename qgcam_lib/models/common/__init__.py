"""What the model families share: vocabulary, checkpoints, the zoo, Hugging Face folders, detectors."""
