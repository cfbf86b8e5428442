#include "ltp/congestion.h"

#include "ltp/bbr.h"
#include "ltp/cubic.h"

namespace gradwire::ltp {

std::unique_ptr<Congestion> make_congestion(CongestionKind kind, std::uint64_t packet, Time rtt) {
  if (kind == CongestionKind::cubic) return std::make_unique<Cubic>(packet, rtt);
  return std::make_unique<Bbr>(packet, rtt);
}

}  // namespace gradwire::ltp
