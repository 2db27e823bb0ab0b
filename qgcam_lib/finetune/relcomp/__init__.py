"""RelComp: losses, fine-tuning of one or both towers, weights between before and after, and what each of them costs."""
