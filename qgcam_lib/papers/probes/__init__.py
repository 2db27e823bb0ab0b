"""All that the notebooks of the conceptual probes call, each name loaded when it is first used."""

from ... import lazy_face

# The modules of this folder, then those of the library, whose public names a notebook may use.
ROOMS = (
    "claims", "congruence", "data", "description", "figures", "finetune", "gallery", "maps", "study", "tables",
    "qgcam_lib.miniworld.scenes.strange", "qgcam_lib.models.registry", "qgcam_lib.page.table",
    "qgcam_lib.probes.audit", "qgcam_lib.report.beside", "qgcam_lib.report.claims", "qgcam_lib.report.figures",
    "qgcam_lib.report.published", "qgcam_lib.report.style", "qgcam_lib.report.tables", "qgcam_lib.runs.current",
    "qgcam_lib.runs.show",
)

__getattr__, __dir__ = lazy_face(__name__, ROOMS)
