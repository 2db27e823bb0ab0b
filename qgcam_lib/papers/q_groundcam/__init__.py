"""All that the notebooks of Q-GroundCAM call, each name loaded when it is first used."""

from ... import lazy_face

# The modules of this folder, then those of the library, whose public names a notebook may use.
ROOMS = (
    "audit", "runs", "claims", "figures", "gallery", "splits",
    "qgcam_lib.data.catalog", "qgcam_lib.grounding.run", "qgcam_lib.grounding.audit", "qgcam_lib.models.registry",
    "qgcam_lib.models.common.zoo", "qgcam_lib.page.table", "qgcam_lib.page.table", "qgcam_lib.report.beside",
    "qgcam_lib.report.claims", "qgcam_lib.report.figures", "qgcam_lib.report.published", "qgcam_lib.report.style",
    "qgcam_lib.report.tables", "qgcam_lib.runs.current", "qgcam_lib.runs.show", "qgcam_lib.statistics.summary",
)

__getattr__, __dir__ = lazy_face(__name__, ROOMS)
