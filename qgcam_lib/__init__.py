"""qgcam_lib: rebuild, re-run and audit four papers on where and why a vision-language model finds a phrase true."""

__version__ = "0.1.0"
