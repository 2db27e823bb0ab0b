"""What is said of a scene: words, sentences, expressions, claims."""
