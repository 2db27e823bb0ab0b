"""Models by role: what they must do, which there are, and how to get one."""

from .registry import list_models, load_model
from .roles import Answerer, Detections, Detector, Explainer, Matcher, RegionRanker

__all__ = ["Answerer", "Detections", "Detector", "Explainer", "Matcher", "RegionRanker",
           "list_models", "load_model"]
