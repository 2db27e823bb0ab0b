"""What is there: things and their relations, how a scene is drawn at random, and its picture."""
