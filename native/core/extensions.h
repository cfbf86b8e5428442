// Extensions of a handshake message: type u16, length u16, value, as often as they fit. Type 0, or less than four
// bytes, is padding up to the end. A reader skips types that it does not know; there are none that it knows yet.
#pragma once
#include "core/bytes.h"

namespace gradwire {

inline bool well_formed_extensions(Bytes area) {
  Reader in(area);
  while (in.ok() && in.left() >= 4 && in.u16() != 0) in.bytes(in.u16());
  return in.ok();
}

}  // namespace gradwire
