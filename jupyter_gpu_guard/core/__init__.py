"""Decisions only: values in, values out. No IO, no clock, no logging, no Jupyter."""
