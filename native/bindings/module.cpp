#include "bindings/bindings.h"

NB_MODULE(_native, m) {
  m.doc() =
      "gradwire's native core: compression kernels, the wires (LTP, TCP, shared memory), sums on one host, LTP in "
      "virtual time.";
  // Torch's reducer keeps a hook, and all that it references, beyond the interpreter's end: not a leak of this module.
  nanobind::set_leak_warnings(false);
  gradwire::bind_kernels(m);
  gradwire::bind_ltp(m);
  gradwire::bind_stream(m);
  gradwire::bind_packets(m);
  gradwire::bind_shm_allreduce(m);
  gradwire::bind_key_exchange(m);
}
