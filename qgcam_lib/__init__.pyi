"""What a type checker sees of the face, which loads nothing before it is asked for."""

from .boxes import box_iou
from .finetune import interpolate
from .grounding import ground
from .maps import MapProtocol, prepare_maps
from .metrics import score_maps
from .models import list_models, load_model
from .phrase_detection import evaluate, load_tricd
from .probes import pair_scores, probe, ranking_average_precision
from .referring import ContrastiveHinge, perturb, refer
from .statistics import summarize

__version__: str
__all__ = ["ContrastiveHinge", "MapProtocol", "box_iou", "evaluate", "ground", "interpolate", "list_models",
           "load_model", "load_tricd", "pair_scores", "perturb", "prepare_maps", "probe", "ranking_average_precision",
           "refer", "score_maps", "summarize"]
ROOMS: dict[str, tuple[str, ...]]
