"""A model supervisor: runs inference engines, parks and wakes models, one endpoint in front."""

__version__ = "0.1.0"
