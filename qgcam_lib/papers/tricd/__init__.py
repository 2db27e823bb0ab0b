"""All that the notebooks of TRICD call, each name loaded when it is first used."""

from ... import lazy_face

# The modules of this folder, then those of the library, whose public names a notebook may use.
ROOMS = (
    "audit", "tables", "detection", "figures", "gallery",
    "qgcam_lib.page.table", "qgcam_lib.phrase_detection.compare",
    "qgcam_lib.phrase_detection.run", "qgcam_lib.report.beside", "qgcam_lib.report.claims",
    "qgcam_lib.report.figures", "qgcam_lib.report.published", "qgcam_lib.report.style", "qgcam_lib.report.tables",
    "qgcam_lib.runs.current", "qgcam_lib.runs.show",
)

__getattr__, __dir__ = lazy_face(__name__, ROOMS)
