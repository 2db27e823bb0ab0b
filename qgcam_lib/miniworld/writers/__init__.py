"""The official files of each data set, written from scenes."""
