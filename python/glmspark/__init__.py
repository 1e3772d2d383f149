"""Serve GLM-5.3-Flash (EXL3) on DGX Sparks: plan, check, start, watch, stop."""

__version__ = "0.1.0"
