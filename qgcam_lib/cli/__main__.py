"""`python -m qgcam_lib.cli` is the command `qgcam`."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
