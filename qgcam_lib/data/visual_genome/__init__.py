"""Visual Genome: entries of its files, what they annotate, and the folder as one data set."""
