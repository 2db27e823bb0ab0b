"""`python -m qgcam_lib.finetune.referring --missing`: run the arms that the study of Ref-Adv's remedies lacks."""

from qgcam_lib.finetune.referring.study import main

if __name__ == "__main__":
    main()
