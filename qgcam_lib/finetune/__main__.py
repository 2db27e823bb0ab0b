"""`python -m qgcam_lib.finetune NAME`: train a mini model and write it to the zoo."""

from qgcam_lib.finetune.command import main

if __name__ == "__main__":
    main()
