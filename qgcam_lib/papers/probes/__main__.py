"""`python -m qgcam_lib.papers.probes`: run the study of RelComp that `relcomp_finetune` shows."""

from qgcam_lib.papers.probes.study import main

if __name__ == "__main__":
    main()
