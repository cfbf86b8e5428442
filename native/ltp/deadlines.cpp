#include "ltp/deadlines.h"

namespace gradwire::ltp {

void Deadlines::on_posted(std::uint32_t rank, std::uint64_t tag) {
  Operation& operation = operations_[tag];
  if (!operation.ranks.insert(rank).second) operation.repeated = true;
}

void Deadlines::on_ended(std::uint64_t tag, Time elapsed) {
  auto found = operations_.find(tag);
  if (found == operations_.end()) return;
  Operation& operation = found->second;
  std::size_t members = operation.ranks.size();
  if (++operation.ended >= members) return void(operations_.erase(found));
  bool majority =
      members >= kFewest && static_cast<double>(operation.ended) >= kMajority * static_cast<double>(members);
  operation.longest = std::max(operation.longest, elapsed);
  if (majority && operation.allowance == kNever) operation.allowance = kLate * operation.longest;
}

void Deadlines::on_withdrawn(std::uint32_t rank, std::uint64_t tag) {
  auto found = operations_.find(tag);
  if (found == operations_.end()) return;
  found->second.ranks.erase(rank);
  if (found->second.ended >= found->second.ranks.size()) operations_.erase(found);
}

Time Deadlines::allowance(std::uint64_t tag) const {
  auto found = operations_.find(tag);
  return found == operations_.end() || found->second.repeated ? kNever : found->second.allowance;
}

}  // namespace gradwire::ltp
