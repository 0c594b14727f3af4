"""HTML report of runs, and the model card of an export."""

from quintet.report.card import model_card
from quintet.report.markup import text
from quintet.report.page import ReportSink, write_page, write_report

__all__ = ["ReportSink", "model_card", "text", "write_page", "write_report"]
