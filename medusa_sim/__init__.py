"""medusa-sim: how many candidate tokens one speculative verification step should carry."""

__version__ = "0.1.0"
