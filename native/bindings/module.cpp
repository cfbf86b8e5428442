#include "bindings/bindings.h"

NB_MODULE(_native, m) {
  m.doc() = "gradwire's native core: compression kernels.";
  gradwire::bind_kernels(m);
}
