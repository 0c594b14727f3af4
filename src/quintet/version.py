"""The version of the package, for those who may not import the package itself."""

__version__ = "0.1.0"
