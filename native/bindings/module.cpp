#include "bindings/bindings.h"

NB_MODULE(_native, m) {
  m.doc() = "gradwire's native core: compression kernels, the LTP transport.";
  gradwire::bind_kernels(m);
  gradwire::bind_ltp(m);
}
