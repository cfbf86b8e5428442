// Deadlines: what all connections of an endpoint share about Early Close: the learned ratios, and the operations. An
// operation is the set of receives with one tag, one from each peer; it ends when the last of them does. So a transfer
// that takes much longer than the others of its operation is late, whatever its own link promised. Times count from
// each transfer's own first data: a rank that computes for longer than the others is not late.
#pragma once
#include <set>
#include <unordered_map>

#include "ltp/early_close.h"

namespace gradwire::ltp {

class Deadlines {
 public:
  explicit Deadlines(const Settings& settings) : early_close(settings) {}

  EarlyClose early_close;

  void on_posted(std::uint32_t rank, std::uint64_t tag);
  void on_ended(std::uint64_t tag, Time elapsed);
  // Cancelled, failed, or posted again on another connection: it shows nothing about the others.
  void on_withdrawn(std::uint32_t rank, std::uint64_t tag);
  // How long the transfers of this tag may take; kNever while too few of them have ended.
  Time allowance(std::uint64_t tag) const;

 private:
  struct Operation {
    std::set<std::uint32_t> ranks;  // whose receives are counted
    std::size_t ended = 0;
    bool repeated = false;  // one peer has two receives of the tag: they follow each other, so that none is late
    Time longest = 0;       // of those that ended
    Time allowance = kNever;
  };

  // A majority shows how long the operation should take; of fewer than four receives there is none to speak of.
  static constexpr std::size_t kFewest = 4;
  static constexpr double kMajority = 0.75;
  // Late is twice as long as the majority took: 1.5 times as long is an ordinary difference between links.
  static constexpr Time kLate = 2;

  std::unordered_map<std::uint64_t, Operation> operations_;
};

}  // namespace gradwire::ltp
