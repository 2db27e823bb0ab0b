"""Training recipes: the mini models of the zoo, fine-tuning and what follows from it."""
