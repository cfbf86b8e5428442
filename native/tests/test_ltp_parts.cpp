// LTP's small parts one by one: wire formats, key derivation against published vectors, windows, permutation, limits.
#include "core/random.h"
#include "ltp/acks.h"
#include "ltp/bitmap.h"
#include "ltp/early_close.h"
#include "ltp/keys.h"
#include "ltp/outgoing.h"
#include "ltp/permute.h"
#include "ltp/pmtu.h"
#include "ltp/receive_side.h"
#include "ltp/send_side.h"
#include "tests/check.h"

#include <set>
#include <string>
#include <type_traits>

using namespace gradwire;
using namespace gradwire::ltp;

namespace {

// What keys come from is wiped also as a temporary value.
static_assert(std::is_same_v<decltype(hmac_sha256({}, {})), HeldSecret>);
static_assert(std::is_same_v<decltype(hkdf_extract({}, {})), HeldSecret>);
static_assert(std::is_same_v<decltype(handshake_key({})), HeldSecret>);
static_assert(std::is_same_v<decltype(job_key({})), HeldSecret>);

std::vector<std::uint8_t> from_hex(const std::string& hex) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

void hkdf_agrees_with_rfc_5869() {
  // Test case 1; our expansion stops at 32 of its 42 bytes.
  auto secret = from_hex("0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b");
  auto salt = from_hex("000102030405060708090a0b0c");
  Secret key = hkdf_extract(salt, secret);
  CHECK(constant_time_equal(key, from_hex("077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5")));
  auto info = from_hex("f0f1f2f3f4f5f6f7f8f9");
  Secret out;
  hkdf_expand(key, std::string_view(reinterpret_cast<const char*>(info.data()), info.size()), {}, out);
  CHECK(constant_time_equal(out, from_hex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf")));
}

void sealed_bytes_open_only_unchanged() {
  for (bool encrypt : {true, false}) {
    Aead seal(Secret{1}, Aead::Direction::seal), open(Secret{1}, Aead::Direction::open),
        other(Secret{2}, Aead::Direction::open);
    std::vector<std::uint8_t> header(12, 3), frames(20, 4), payload(100, 5), out(136);
    CHECK(seal.seal(9, header, frames, payload, out.data(), encrypt));
    auto copy = out;
    CHECK(!other.open(9, header, copy, encrypt));
    copy = out;
    CHECK(!open.open(10, header, copy, encrypt));
    copy = out;
    copy[50] ^= 1;
    CHECK(!open.open(9, header, copy, encrypt));
    copy = out;
    CHECK(open.open(9, header, copy, encrypt));
    CHECK(copy[0] == 4 && copy[19] == 4 && copy[20] == 5 && copy[119] == 5);
  }
}

void frames_read_back_as_written() {
  std::uint8_t buffer[kBaseDatagram];
  Writer out(buffer);
  OpenFrame open;
  open.id = 7ull << 40, open.tag = 1ull << 60, open.size = 1'000'000, open.grain = 356, open.element = 4,
  open.tolerance = 980'000, open.least = 490'000;
  open.critical_count = 1, open.critical[0] = {3, 4};
  write(out, open);
  CHECK(out.size() == size_of(open));
  CloseFrame close;
  close.id = 7, close.reason = CloseReason::deadline, close.received = 55, close.count = 2;
  close.missing[0] = {1, 2}, close.missing[1] = {9, 1};
  std::size_t before = out.size();
  write(out, close);
  CHECK(out.size() - before == size_of(close));
  before = out.size();
  write_data_header(out, 7, 8, 3);
  CHECK(out.size() - before == kDataHeader);
  out.bytes(std::vector<std::uint8_t>{1, 2, 3});
  Reader in(out.written());
  Frame frame;
  CHECK(next_frame(in, frame) && std::get<OpenFrame>(frame).id == open.id &&
        std::get<OpenFrame>(frame).least == open.least);
  CHECK(std::get<OpenFrame>(frame).tag == open.tag && std::get<OpenFrame>(frame).critical[0] == open.critical[0]);
  CHECK(next_frame(in, frame) && std::get<CloseFrame>(frame).missing[1] == close.missing[1]);
  CHECK(next_frame(in, frame) && std::get<DataFrame>(frame).first == 8 && std::get<DataFrame>(frame).bytes.size() == 3);
  CHECK(in.left() == 0);
  // Every truncation is detected, and nothing is read past the end.
  for (std::size_t cut = 0; cut < out.size(); ++cut) {
    Reader part(Bytes(buffer).first(cut));
    while (part.left() && next_frame(part, frame)) {
    }
  }
}

void the_replay_window_accepts_each_number_once() {
  ReplayWindow<128> seen;
  std::set<std::uint64_t> model;
  Random random(3);
  std::uint64_t end = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::uint64_t number = end + random.next() % 40 + (random.next() % 500 ? 0 : 1000);
    number = number > 30 ? number - 30 : 0;
    bool expected = !(number + 128 < end) && model.insert(number).second;
    CHECK(seen.insert(number) == expected);
    end = std::max(end, number + 1);
    CHECK(seen.end() == end && seen.contains(number));
  }
}

void bitmaps_agree_with_a_plain_set() {
  Bitmap bits(1000);
  std::set<std::uint64_t> model;
  Random random(4);
  for (int i = 0; i < 3000; ++i) {
    std::uint64_t first = random.next() % 1000, count = random.next() % std::min<std::uint64_t>(90, 1001 - first);
    bool set = random.next() % 2;
    std::uint64_t changed = 0;
    for (std::uint64_t n = first; n < first + count; ++n) changed += set ? model.insert(n).second : model.erase(n);
    CHECK((set ? bits.set(first, count) : bits.clear(first, count)) == changed);
    CHECK(bits.count() == model.size());
    auto next = model.lower_bound(first);
    CHECK(bits.next_set(first) == (next == model.end() ? 1000 : *next));
    std::uint64_t clear = first;
    while (model.count(clear)) ++clear;
    CHECK(bits.next_clear(first) == clear);
  }
}

void permutations_visit_everything_once_and_differ_by_seed() {
  for (std::uint64_t size : {1u, 2u, 3u, 17u, 1000u, 4096u}) {
    std::set<std::uint64_t> seen;
    Permutation order(size, 5), other(size, 6);
    std::uint64_t equal = 0;
    for (std::uint64_t i = 0; i < size; ++i) seen.insert(order(i)), equal += order(i) == other(i);
    CHECK(seen.size() == size && *seen.rbegin() == size - 1);
    if (size >= 1000) CHECK(equal < size / 20);
  }
}

void acks_repeat_themselves_and_are_not_late() {
  Acks acks;
  CHECK(acks.deadline() == kNever);
  acks.on_packet(1000, 0, true, 4 * kMillisecond);
  CHECK(acks.deadline() == 1000 + Acks::kLongest);
  for (std::uint64_t n = 1; n < Acks::kEvery; ++n) acks.on_packet(2000, n, true, 4 * kMillisecond);
  CHECK(acks.due(2000));
  AckFrame ack;
  acks.fill(5000, ack);
  CHECK(ack.largest() == 15 && ack.bits[0] == 0xffff && ack.delay_us == 3);
  acks.on_packet(6000, 200, true, 4 * kMillisecond);
  acks.fill(6000, ack);
  CHECK(ack.base == 0 && ack.words == 4 && ack.bits[0] == 0xffff && ack.largest() == 200);
}

void early_close_follows_the_formula_and_then_measured_ratios() {
  Settings settings;
  EarlyClose early(settings);
  CHECK(early.limits(1'000'000, 0, 0).threshold == settings.first_deadline);
  auto limits = early.limits(1'000'000, 20 * kMillisecond, 10e6);
  CHECK(limits.formula == 130 * kMillisecond && limits.threshold == 4 * limits.formula);
  CHECK(limits.deadline == limits.threshold + 40 * kMillisecond);
  auto near = early.limits(1'000'000, kMillisecond, 10e6);
  CHECK(near.deadline == near.threshold + settings.deadline_slack);
  for (int i = 0; i < 64; ++i) early.on_closed(limits, limits.formula * (10 + i) / 10, 1);  // ratios 1.0 .. 7.3
  CHECK(early.ratio() > 6.5 && early.ratio() < 6.9);
  // Cut at half: the whole would have taken twice as long.
  for (int i = 0; i < 64; ++i) early.on_closed(limits, limits.formula, 0.5);
  CHECK(early.ratio() == 2);
  // A transfer of one packet takes no time from its first packet to its last: nothing to learn for larger ones.
  auto small = early.limits(2048, 20 * kMillisecond, 10e6);
  for (int i = 0; i < 64; ++i) early.on_closed(small, 0, 1);
  CHECK(early.ratio() == 2);
  // The deadline is never below the formula, also when transfers were faster.
  for (int i = 0; i < 64; ++i) early.on_closed(limits, limits.formula / 2, 1);
  CHECK(early.ratio() == 0.5);
  limits = early.limits(1'000'000, 20 * kMillisecond, 10e6);
  CHECK(limits.threshold == limits.formula / 2 && limits.deadline == limits.formula + 40 * kMillisecond);
  // Whatever numbers a peer sends, times can still be added up.
  limits = early.limits(~std::uint64_t{0}, Time{0xffffffff} * kMicrosecond, 1);
  CHECK(limits.deadline > 0 && limits.deadline < kNever / 2);
}

// Whichever block the permuted order ends in: after its last first transmission a transfer has sent everything once,
// and nothing is pending.
void all_sent_once_holds_after_the_last_first_transmission() {
  std::vector<std::uint8_t> bytes(50'000);
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SendRequest request{1, bytes.data(), bytes.size(), 1, 4, 0, 980'000, {{0, 5000}, {20'000, 9000}}, seed};
    Outgoing transfer(0, request, 1400, 0);
    Outgoing::Piece piece;
    std::size_t sent = 0;
    while (transfer.pending()) {
      CHECK(!transfer.all_sent_once());
      bool came = transfer.next(1400, piece);
      CHECK(came);
      if (!came) break;
      sent += piece.bytes.size();
    }
    CHECK(transfer.all_sent_once() && !transfer.pending() && sent == bytes.size());
  }
}

// Ids continue beyond 32 bits: a transfer with such an id is not treated as an old one, acknowledged and dropped.
void transfer_ids_do_not_wrap() {
  Settings settings;
  ControlQueue sending, receiving;
  std::deque<Event> sent, received;
  LinkCounters counters;
  SendSide sends(1, 1 << 20, sending, sent, counters, (TransferId{1} << 32) - 3);
  Deadlines deadlines(settings);
  ReceiveSide receives(0, settings, deadlines, receiving, received, counters);
  std::vector<std::uint8_t> source(1000, 7), destination(1000);
  std::uint8_t buffer[kBaseDatagram];
  for (std::uint64_t tag = 0; tag < 6; ++tag) {
    receives.post(0, {tag, destination.data(), destination.size(), tag, 0, 0});
    sends.submit(0, {tag, source.data(), source.size(), tag, 1, 0, kWhole, {}, 1});
    Outgoing* transfer = sends.ready(1100);
    CHECK(transfer && transfer->id() == (TransferId{1} << 32) - 3 + tag);
    if (!transfer) return;
    Outgoing::Piece piece;
    CHECK(transfer->next(1100, piece));
    Writer out(buffer);
    write(out, transfer->open_frame());
    write_data_header(out, transfer->id(), piece.first, piece.bytes.size());
    out.bytes(piece.bytes);
    sends.on_piece(*transfer, piece);
    Reader in(out.written());
    Frame frame;
    CHECK(next_frame(in, frame) && receives.on_open(0, std::get<OpenFrame>(frame)));
    CHECK(next_frame(in, frame) && receives.on_data(0, std::get<DataFrame>(frame)) == ReceiveSide::DataResult::taken);
    CHECK(received.size() == tag + 1 && received.back().arrived == source.size());
    sends.on_acked(0, transfer->id(), 0, piece.count);
  }
  CHECK(sent.size() == 6 && counters.late_data == 0);
}

// A peer that lists the same grains twice must not make the count of arrived bytes negative.
void overlapping_ranges_of_a_close_count_once() {
  std::vector<std::uint8_t> bytes(10'000);
  Outgoing transfer(0, {1, bytes.data(), bytes.size(), 1, 4, 0, 900'000, {}, 1}, 1400, 0);
  std::uint64_t grain = transfer.open_frame().grain;
  CloseFrame close;
  close.reason = CloseReason::deadline;
  close.count = 3;
  close.missing[0] = {5, 10}, close.missing[1] = {0, 20}, close.missing[2] = {19, 2};
  CHECK(transfer.on_close(close));
  auto missing = transfer.missing();
  CHECK(missing.size() == 1 && missing[0].offset == 0 && missing[0].length == 21 * grain);
}

// ABORT of a transfer never announced here arrives long after its id left the window: its credit must still be
// returned.
void a_late_abort_returns_its_credit() {
  Settings settings;
  ControlQueue control;
  std::deque<Event> events;
  LinkCounters counters;
  Deadlines deadlines(settings);
  ReceiveSide receives(0, settings, deadlines, control, events, counters);
  OpenFrame open;
  open.size = 10, open.grain = open.element = 1, open.id = 5000;
  receives.on_open(0, open);
  control.clear();
  receives.on_abort(0, AbortFrame{3});
  CHECK(control.size() == 1 && control.front().type == FrameType::grant && control.front().id == 3);
}

void mtu_search_ends_at_the_path_mtu() {
  for (std::size_t path : {1200u, 1400u, 1472u, 9000u}) {
    Pmtu pmtu(8972);
    for (int i = 0; i < 40; ++i)
      if (std::size_t size = pmtu.due(0)) {
        pmtu.on_probe_sent();
        CHECK(pmtu.due(0) == 0);
        if (size <= path)
          pmtu.on_probe_acked(0, size);
        else
          pmtu.on_probe_lost(0);
      }
    CHECK(pmtu.due(0) == 0 && pmtu.current() <= path && pmtu.current() + 110 > std::min<std::size_t>(path, 8972));
  }
}

}  // namespace

int main() {
  hkdf_agrees_with_rfc_5869();
  sealed_bytes_open_only_unchanged();
  frames_read_back_as_written();
  the_replay_window_accepts_each_number_once();
  bitmaps_agree_with_a_plain_set();
  permutations_visit_everything_once_and_differ_by_seed();
  acks_repeat_themselves_and_are_not_late();
  early_close_follows_the_formula_and_then_measured_ratios();
  all_sent_once_holds_after_the_last_first_transmission();
  transfer_ids_do_not_wrap();
  overlapping_ranges_of_a_close_count_once();
  a_late_abort_returns_its_credit();
  mtu_search_ends_at_the_path_mtu();
  return gradwire::test::finish();
}
