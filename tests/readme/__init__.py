"""The code of README.md and CONTRIBUTING.md, block by block, and the files that a reader has beside it."""
