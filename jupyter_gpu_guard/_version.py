"""The version of the distribution; pyproject.toml reads it from here, and labextension/package.json says the same."""

__version__ = "0.1.0"
