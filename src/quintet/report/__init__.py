"""The gallery: one HTML page that shows a run, and the model card of an export."""

from quintet.report.card import model_card
from quintet.report.page import ReportSink, write_report

__all__ = ["ReportSink", "model_card", "write_report"]
