"""gradwire's native core: compression kernels."""



def isa() -> str:
    """The instruction set the kernels run on."""
