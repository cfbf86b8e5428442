#include "core/random.h"

#include <sys/random.h>

#include "core/descriptor.h"

namespace gradwire {

void fill_random(MutableBytes out) {
  if (::getrandom(out.data(), out.size(), 0) != static_cast<ssize_t>(out.size())) throw_errno("getrandom");
}

}  // namespace gradwire
