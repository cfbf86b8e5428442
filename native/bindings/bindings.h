// The Python interface of the native core. Bindings contain no logic: pointers in, results out, the GIL released.
#pragma once
#include <nanobind/nanobind.h>

namespace gradwire {

void bind_kernels(nanobind::module_& m);
void bind_ltp(nanobind::module_& m);
void bind_stream(nanobind::module_& m);
void bind_packets(nanobind::module_& m);
void bind_key_exchange(nanobind::module_& m);
void bind_shm_allreduce(nanobind::module_& m);

}  // namespace gradwire
