"""Quintet: train generative models of five kinds of media with one engine."""

__version__ = "0.1.0"
