"""Judges: numbers about files, each with a receipt that says exactly what was measured.

    folders ─ pairs.py: files that belong together ─> samples ─ judge ─> rows or features ─> Score

A judge compares outputs with references, pair by pair (PSNR, word error rate) or set with set
(FID, coverage). It knows no run and no task: anybody's files are judged alike. Each medium has a
module here with its judges in `JUDGES` and a `read` for its files.
"""
