"""The code of README, the guide and CONTRIBUTING, block by block, and the files that a reader has beside it."""
