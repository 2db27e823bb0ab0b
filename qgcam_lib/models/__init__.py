"""Models by role: what they must do, which there are, and how to get one."""

from .registry import Explainer, Matcher, list_models, load_model

__all__ = ["Explainer", "Matcher", "list_models", "load_model"]
