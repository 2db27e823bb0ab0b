"""`python -m qgcam_lib.finetune`: train the mini BLIP and write it to the zoo."""

from qgcam_lib.finetune.mini import main

if __name__ == "__main__":
    main()
