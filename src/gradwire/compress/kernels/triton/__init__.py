"""Kernels for GPUs, in Triton: what `native.py` does, on tensors of a device, without the host waiting for anything.

    numbers    bits of floats, noise, rounding: what the kernels share
    quantise   int8, int4, int2 with error feedback
    half       fp16, bf16 with error feedback
    decode     frames of W ranks, decoded and added in rank order
    largest    the k-th largest magnitude, by histograms
    compact    stream compaction of what reaches it
    indices    Rice codes or a bitmap of the selected indices, and the frame's header
    sparse     values of a sparse frame: encoded, and added where they belong

`launch.py` queues them on the current stream; nothing else imports them, and `import gradwire` does not import triton
(the extra `gradwire[gpu]`). They write the bits that the native kernels write. For that they are compiled without
contraction of multiplications and additions, and divide exactly; a NaN's payload is the processor's choice.
"""
