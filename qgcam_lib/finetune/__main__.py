"""`python -m qgcam_lib.finetune --name NAME`: train a mini model and write it to the zoo."""

from qgcam_lib.finetune.minis import main

if __name__ == "__main__":
    main()
