"""Serving of vision-language models on the IREE runtime."""

from pyvlm.errors import PyvlmError

__version__ = "0.1.0"
__all__ = ["PyvlmError", "__version__"]
