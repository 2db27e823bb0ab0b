"""What every test starts from: no settings from the shell, no model hub, no user start-up files, few threads."""

import os

for _name in [name for name in os.environ if name.startswith("QGCAM_")]:
    del os.environ[_name]
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", MPLBACKEND="Agg")
os.environ.pop("PYTHONSTARTUP", None)
