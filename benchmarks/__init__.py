"""Measurements of what the guard costs, beside what others cost in the same run. See README.md."""
