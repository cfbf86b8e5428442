#include "shm_allreduce/shm_allreduce.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace gradwire::shm_allreduce {
namespace {

// Shares begin at multiples of this: any element type fits, and no two ranks write the same cache line.
constexpr std::size_t kGrain = 64;

}  // namespace

ShmAllreduce::ShmAllreduce(int file, Shape shape, std::size_t rank, Time spin)
    : shape_(shape), memory_(file, shape), rank_(rank), spin_(spin) {
  if (rank >= shape.ranks)
    throw std::runtime_error("rank " + std::to_string(rank) + " is outside a group of " + std::to_string(shape.ranks) +
                             " ranks");
}

void ShmAllreduce::announce(std::uint64_t number, std::uint64_t sums, const std::uint8_t* header) {
  CallRecord note{sums};
  std::memcpy(note.header, header, kHeader);
  memory_.record_call(rank_, number, note);
  memory_.wake_all();
}

void ShmAllreduce::begin(std::uint64_t number, const std::uint8_t* header, const Sum& sum) {
  sum_ = sum;
  number_ = number;
  turn_ = begun_++;
  record_.sums = begun_;
  std::memcpy(record_.header, header, kHeader);
  base_ += phases_;
  chunks_ = std::max<std::size_t>(1, (sum.bytes + shape_.slot - 1) / shape_.slot);
  phases_ = chunks_ + (sum.sharded ? 1 : 0);
  index_ = 0;
  stage_ = Stage::copy;
  memory_.record_sum(rank_, turn_, record_);
}

ShmAllreduce::Range ShmAllreduce::chunk(std::uint64_t index) const {
  std::size_t begin = index * shape_.slot;
  return {begin, std::min(shape_.slot, sum_.bytes - begin)};
}

// Inside the chunk, whose begin is 0.
ShmAllreduce::Range ShmAllreduce::share(std::uint64_t index, std::size_t rank) const {
  std::size_t size = chunk(index).size;
  std::size_t step = ((size + shape_.ranks - 1) / shape_.ranks + kGrain - 1) / kGrain * kGrain;
  std::size_t begin = std::min(size, rank * step);
  return {begin, std::min(step, size - begin)};
}

void ShmAllreduce::copy_in() {
  if (index_ >= chunks_) return;
  Range range = chunk(index_);
  if (range.size) std::memcpy(memory_.slot(base_ + index_, rank_), sum_.data + range.begin, range.size);
}

void ShmAllreduce::copy_out() {
  std::uint64_t done = index_ - 1;
  Range whole = chunk(done);
  for (std::size_t shift = 1; shift < shape_.ranks; ++shift) {
    std::size_t peer = (rank_ + shift) % shape_.ranks;
    Range range = share(done, peer);
    if (range.size)
      std::memcpy(sum_.data + whole.begin + range.begin, memory_.slot(base_ + done, peer) + range.begin, range.size);
  }
}

Fold ShmAllreduce::folding() const {
  std::uint64_t index = sum_.sharded ? index_ - 1 : index_;
  Range range = sum_.sharded ? share(index, rank_) : chunk(index);
  return {base_ + index, (sum_.sharded ? chunk(index).begin : 0) + range.begin, sum_.sharded ? range.begin : 0,
          range.size};
}

// False: the caller must reduce first.
bool ShmAllreduce::reduce(bool early) {
  Fold fold = folding();
  if (fold.bytes == 0) return true;
  if (sum_.kind == Kind::caller && !std::exchange(folded_, false)) return false;
  if (sum_.kind != Kind::caller) {
    std::array<const std::uint8_t*, kRanksMost> rows;
    for (std::size_t rank = 0; rank < shape_.ranks; ++rank) rows[rank] = memory_.slot(fold.phase, rank) + fold.place;
    add_rows(sum_.kind, rows.data(), shape_.ranks, sum_.data + fold.offset, fold.bytes / sum_.item);
  }
  if (early) std::memcpy(memory_.slot(fold.phase, rank_) + fold.place, sum_.data + fold.offset, fold.bytes);
  return true;
}

bool ShmAllreduce::arrived() {
  std::uint64_t wanted = base_ + index_ + 1;
  for (std::size_t rank = 0; rank < shape_.ranks; ++rank)
    if (memory_.phase(rank).load() < wanted) return false;
  return true;
}

void ShmAllreduce::publish() {
  memory_.phase(rank_).store(base_ + index_ + 1);
  // The last rank wakes all others at once.
  if (arrived()) memory_.wake_all();
}

bool ShmAllreduce::differs() {
  for (std::size_t rank = 0; rank < shape_.ranks; ++rank) {
    if (rank == rank_) continue;
    CallRecord sum, call;
    bool arrived_here = memory_.find_sum(rank, turn_, sum) != Found::none;
    if (arrived_here && std::memcmp(sum.header, record_.header, kHeader) == 0) continue;
    // A rank that is not here but further on over the wire has skipped this sum, or has requested it and will arrive.
    Found elsewhere = memory_.find_call(rank, number_, call);
    bool passed = elsewhere == Found::exact || (elsewhere == Found::newer && call.sums <= turn_);
    if (!arrived_here && !passed) continue;
    odd_ = rank;
    odd_header_.clear();
    if (elsewhere == Found::exact)
      odd_header_.assign(call.header, call.header + kHeader);
    else if (arrived_here)
      odd_header_.assign(sum.header, sum.header + kHeader);
    return true;
  }
  return false;
}

Status ShmAllreduce::wait(Time deadline) {
  // A sum is recorded before its first phase, and the record stays until all ranks have reached the next sum.
  bool first = index_ == 0;
  Time now = monotonic_now();
  for (Time end = std::min(deadline, now + spin_); !arrived() && now < end; now = monotonic_now()) ::sched_yield();
  while (!arrived()) {
    if (first && differs()) return Status::differs;
    if (monotonic_now() >= deadline) return Status::waiting;
    memory_.sleep(deadline, [&] { return arrived() || (first && differs()); });
  }
  return first && differs() ? Status::differs : Status::done;
}

Status ShmAllreduce::step(Time deadline) {
  while (true) switch (stage_) {
      case Stage::copy:
        copy_in();
        stage_ = Stage::early;
        break;
      case Stage::early:
        if (sum_.sharded && index_ > 0 && !reduce(true)) return Status::fold;
        stage_ = Stage::publish;
        break;
      case Stage::publish:
        publish();
        stage_ = Stage::wait;
        break;
      case Stage::wait:
        if (Status status = wait(deadline); status != Status::done) return status;
        stage_ = Stage::late;
        break;
      case Stage::late:
        if (!sum_.sharded && !reduce(false)) return Status::fold;
        if (sum_.sharded && index_ > 0) copy_out();
        stage_ = Stage::copy;
        if (++index_ == phases_) return Status::done;
    }
}

std::vector<std::size_t> ShmAllreduce::missing() {
  std::vector<std::size_t> ranks;
  for (std::size_t rank = 0; rank < shape_.ranks; ++rank)
    if (memory_.phase(rank).load() < base_ + index_ + 1) ranks.push_back(rank);
  return ranks;
}

}  // namespace gradwire::shm_allreduce
