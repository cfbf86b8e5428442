"""State: what the kernels of one selection pass to each other in device memory, as int32 words."""

import triton.language as tl

WORDS = 8

NONFINITE = tl.constexpr(0)  # elements that are not finite
COUNT = tl.constexpr(1)  # elements that were selected
LIMIT = tl.constexpr(2)  # the key of the smallest one
EQUAL = tl.constexpr(3)  # how many elements equal to the limit may be selected
VALUES = tl.constexpr(4)  # where the values begin in the frame, in bytes
SENT_NONFINITE = tl.constexpr(5)  # of the selected ones, those that are not finite
BITMAP = tl.constexpr(6)  # whether indices are sent as a bitmap
RICE = tl.constexpr(7)  # low bits of a Rice code
