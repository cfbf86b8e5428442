#include "bindings/bindings.h"

NB_MODULE(_native, m) {
  m.doc() = "gradwire's native core: compression kernels, the wires (LTP, TCP, shared memory), sums on one host.";
  gradwire::bind_kernels(m);
  gradwire::bind_ltp(m);
  gradwire::bind_stream(m);
  gradwire::bind_board(m);
}
