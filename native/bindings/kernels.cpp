#include "bindings/bindings.h"
#include "kernels/cpu.h"

namespace gradwire {

void bind_kernels(nanobind::module_& m) {
  m.def("isa", [] { return isa_name(best_isa()); }, "The instruction set the kernels run on.");
}

}  // namespace gradwire
