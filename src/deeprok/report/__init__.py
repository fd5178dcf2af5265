"""A page that shows runs live, side by side, and what was measured of them: as a file, or served while they train."""

from deeprok.report.report import write_report
from deeprok.report.watch import Watch

__all__ = ["Watch", "write_report"]
