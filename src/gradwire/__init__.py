"""gradwire: data-parallel PyTorch training that adapts to the network it runs on."""

__version__ = "0.1.0"
