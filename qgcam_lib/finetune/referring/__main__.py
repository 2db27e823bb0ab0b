"""`python -m qgcam_lib.finetune.referring --missing`: run the arms that the study of Ref-Adv's remedies lacks; `... order`: the study
of word order."""

import sys

from qgcam_lib.finetune.referring import order, study

if __name__ == "__main__":
    order.main(sys.argv[2:]) if sys.argv[1:2] == ["order"] else study.main()
