// Transfers over a bad network in virtual time: every byte is delivered or reported as missing.
#include "tests/check.h"
#include "tests/world.h"

using namespace gradwire;
using namespace gradwire::ltp;
using namespace gradwire::ltp::test;

namespace {

// Delivered and missing add up to what was sent; delivered bytes are exact, missing ones zero; both sides agree.
void check_conservation(const Event& sent, const Event& received, const std::vector<std::uint8_t>& source,
                        const std::vector<std::uint8_t>& destination) {
  CHECK(sent.failure == Failure::none && received.failure == Failure::none);
  CHECK(sent.missing == received.missing);
  std::vector<std::uint8_t> expected = source;
  std::uint64_t missing = 0;
  for (const ByteRange& range : received.missing) {
    CHECK(range.length > 0 && range.offset + range.length <= source.size());
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(range.offset), range.length, std::uint8_t{0});
    missing += range.length;
  }
  CHECK(missing + received.arrived == source.size());
  CHECK(expected == destination);
}

struct Case {
  PipeSpec spec;
  std::size_t size = 1'000'003;
  std::uint32_t tolerance = kWhole;
  std::uint16_t element = 1, record = 0;
  std::vector<ByteRange> critical;
  Settings settings;
  bool post_late = false;
};

struct Outcome {
  Event sent, received;
  Time elapsed = 0;
  LinkStats sender;
};

Outcome run(const Case& c, std::uint64_t seed) {
  World world(seed);
  Host& a = world.add(0, c.settings);
  Host& b = world.add(1, c.settings);
  world.link(0, 1, c.spec);
  world.connect(a, b);
  CHECK(world.run(20 * kSecond, [&] { return connected(a, 1) && connected(b, 0); }));
  auto source = random_bytes(c.size, seed);
  // Old values in the destination must not remain in the gaps.
  std::vector<std::uint8_t> destination(c.size, 0xee);
  SendRequest request{7, source.data(), source.size(), 42, c.element, c.record, c.tolerance, c.critical, seed};
  ReceiveRequest post{9, destination.data(), destination.size(), 42, 0, 0};
  Time start = world.now;
  if (!c.post_late) b.endpoint->post(world.now, 0, post);
  a.endpoint->send(world.now, 1, request);
  if (c.post_late) world.run(500 * kMillisecond), b.endpoint->post(world.now, 0, post);
  bool done = world.run(120 * kSecond,
                        [&] { return find_event(a, EventType::sent, 7) && find_event(b, EventType::received, 9); });
  CHECK(done);
  Outcome outcome;
  if (!done) return outcome;
  outcome.sent = *find_event(a, EventType::sent, 7);
  outcome.received = *find_event(b, EventType::received, 9);
  outcome.elapsed = world.now - start;
  outcome.sender = a.endpoint->peer(1)->connection->stats();
  check_conservation(outcome.sent, outcome.received, source, destination);
  return outcome;
}

void reliable_transfers_arrive_complete_on_a_bad_network() {
  for (std::uint64_t seed = 1; seed <= 4; ++seed)
    for (double loss : {0.0, 0.01, 0.1, 0.3}) {
      Case c;
      c.spec.loss = loss;
      c.spec.reorder = 0.05;
      c.spec.duplicate = 0.05;
      c.spec.corrupt = 0.02;
      c.post_late = seed % 2;
      Outcome outcome = run(c, seed);
      CHECK(outcome.received.missing.empty());
      CHECK(outcome.received.reason == CloseReason::complete);
    }
}

void sizes_and_alignments() {
  for (std::size_t size : {1u, 3u, 359u, 1156u, 1157u, 1158u, 5000u, 100'001u})
    for (std::uint16_t element : {1, 2, 4, 8}) {
      Case c;
      c.size = size;
      c.element = element;
      c.spec.loss = 0.05;
      run(c, size + element);
    }
}

void tolerant_transfers_close_early_and_lose_nothing_silently() {
  int early = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    World world(seed);
    PipeSpec spec;
    spec.loss = 0.15;
    Host& a = world.add(0);
    Host& b = world.add(1);
    world.link(0, 1, spec);
    world.connect(a, b);
    CHECK(world.run(20 * kSecond, [&] { return connected(a, 1) && connected(b, 0); }));
    // Several in a row, so that rate and round trip are known and Early Close has its limits.
    for (std::uint64_t round = 0; round < 6; ++round) {
      auto source = random_bytes(2'000'000, seed * 100 + round);
      std::vector<std::uint8_t> destination(source.size(), 0xee);
      ByteRange critical{40'000, 10'000};
      b.endpoint->post(world.now, 0, {round + 1, destination.data(), destination.size(), round, 0, 0});
      a.endpoint->send(world.now, 1,
                       {round + 1, source.data(), source.size(), round, 4, 0, 900'000, {critical}, round});
      CHECK(world.run(60 * kSecond, [&] {
        return find_event(a, EventType::sent, round + 1) && find_event(b, EventType::received, round + 1);
      }));
      const Event* sent = find_event(a, EventType::sent, round + 1);
      const Event* received = find_event(b, EventType::received, round + 1);
      if (!sent || !received) return;
      check_conservation(*sent, *received, source, destination);
      if (received->reason == CloseReason::threshold) CHECK(static_cast<double>(received->arrived) >= 0.9 * 2e6);
      early += received->reason != CloseReason::complete;
      for (const ByteRange& range : received->missing) {
        CHECK(range.offset % 4 == 0);
        CHECK(range.offset + range.length <= critical.offset || range.offset >= critical.offset + critical.length);
      }
    }
  }
  // Where some packets need three tries and 90 % are enough, waiting for the last one must be the exception.
  std::printf("early closes: %d of 72\n", early);
  CHECK(early > 20);
}

// Rounds of one megabyte: how long the receiver took from the first packet to the close, as a mean over the rounds
// after the path was measured, and what was missing in all of them.
struct Rounds {
  double seconds = 0, missing = 0;
};

Rounds rounds(const PipeSpec& spec, std::uint32_t tolerance) {
  World world(21);
  Host& a = world.add(0);
  Host& b = world.add(1);
  world.link(0, 1, spec);
  world.connect(a, b);
  auto source = random_bytes(1'000'000, 1);
  Rounds seen;
  for (std::uint64_t tag = 1; tag <= 12; ++tag) {
    std::vector<std::uint8_t> destination(source.size(), 0xee);
    b.endpoint->post(world.now, 0, {tag, destination.data(), destination.size(), tag, 0, 0});
    a.endpoint->send(world.now, 1, {tag, source.data(), source.size(), tag, 4, 0, tolerance, {}, tag});
    CHECK(world.run(60 * kSecond,
                    [&] { return find_event(a, EventType::sent, tag) && find_event(b, EventType::received, tag); }));
    const Event* received = find_event(b, EventType::received, tag);
    if (!received) return seen;
    check_conservation(*find_event(a, EventType::sent, tag), *received, source, destination);
    CHECK(static_cast<double>(received->arrived) * kWhole >=
          static_cast<double>(tolerance) * static_cast<double>(received->size));
    seen.missing += static_cast<double>(received->size - received->arrived);
    if (tag > 4) seen.seconds += static_cast<double>(received->elapsed) / kSecond / 8;
  }
  return seen;
}

// The sender reports when all was sent once; a receiver with enough data does not wait for retransmission.
void a_receiver_with_enough_does_not_wait_for_retransmission() {
  PipeSpec spec;
  spec.delay = 15 * kMillisecond;
  spec.queue = 2e6;
  spec.loss = 0.01;
  Rounds tolerant = rounds(spec, 980'000), reliable = rounds(spec, kWhole);
  std::printf("1 MB over 30 ms, 1 %% lost: %.0f ms, reliably %.0f ms\n", 1e3 * tolerant.seconds,
              1e3 * reliable.seconds);
  CHECK(tolerant.seconds + 0.02 < reliable.seconds);
  CHECK(reliable.missing == 0 && tolerant.missing > 0);
}

// Late is not lost: packets that the last one overtook are still waited for.
void late_data_counts_as_arrived() {
  PipeSpec spec;
  spec.queue = 2e6;
  spec.reorder = 0.1;
  CHECK(rounds(spec, 980'000).missing == 0);
}

// As in training: many small transfers between few large ones, on a path without loss.
void small_transfers_do_not_cut_large_ones() {
  World world(9);
  PipeSpec spec;
  spec.delay = 5 * kMillisecond;
  spec.queue = 5e6;
  Host& a = world.add(0);
  Host& b = world.add(1);
  world.link(0, 1, spec);
  world.connect(a, b);
  auto source = random_bytes(2'000'000, 1);
  std::vector<std::uint8_t> destination(source.size());
  for (std::uint64_t tag = 1; tag <= 4 * 13; ++tag) {
    std::size_t size = tag % 13 ? 2048 : source.size();
    b.endpoint->post(world.now, 0, {tag, destination.data(), size, tag, 0, 0});
    a.endpoint->send(world.now, 1, {tag, source.data(), size, tag, 4, 0, 980'000, {}, tag});
    CHECK(world.run(10 * kSecond,
                    [&] { return find_event(a, EventType::sent, tag) && find_event(b, EventType::received, tag); }));
    CHECK(find_event(b, EventType::received, tag)->arrived >= size * 98 / 100);
  }
}

// Controls fill all the room there is for frames while a wide path leaves room in the packet.
void a_packet_full_of_controls_carries_no_data() {
  Settings settings;
  settings.encrypt = false;
  World world(3);
  Host& a = world.add(0, settings);
  Host& b = world.add(1, settings);
  world.link(0, 1, {});
  world.connect(a, b);
  world.run(3 * kSecond);
  CHECK(b.endpoint->peer(0)->connection->datagram() == 1472);
  // Every other record gets lost each time: 144 gaps, whose two CLOSE frames are 1200 bytes together.
  constexpr std::uint16_t kRecord = 1157;
  world.drop = [](std::uint32_t from, Bytes bytes) {
    Reader in(bytes.subspan(kSealedHeader, bytes.size() - kSealedOverhead));
    Frame frame;
    while (from == 0 && in.left() && next_frame(in, frame))
      if (auto* data = std::get_if<DataFrame>(&frame); data && data->first % 2) return true;
    return false;
  };
  auto source = random_bytes(289 * kRecord, 1);
  std::vector<std::uint8_t> gappy(source.size()), zeros(200), box(zeros.size(), 0xee);
  b.endpoint->post(world.now, 0, {1, gappy.data(), gappy.size(), 1, 400 * kMillisecond, 2 * kSecond});
  a.endpoint->post(world.now, 1, {2, box.data(), box.size(), 2, 0, 0});
  a.endpoint->send(world.now, 1, {1, source.data(), source.size(), 1, 1, kRecord, 400'000, {}, 1});
  world.run(300 * kMillisecond);
  b.paused = true;
  world.run(200 * kMillisecond);
  b.paused = false;
  // Closes a transfer and has data to send in one turn of its loop. Bytes of a frame without a header would be read as
  // PADDING, because they are zero.
  b.endpoint->handle_timeout(world.now);
  b.endpoint->send(world.now, 0, {2, zeros.data(), zeros.size(), 2, 1, 0, kWhole, {}, 2});
  CHECK(world.run(5 * kSecond,
                  [&] { return find_event(b, EventType::sent, 2) && find_event(a, EventType::received, 2); }));
  CHECK(find_event(b, EventType::received, 1) && find_event(b, EventType::received, 1)->missing.size() == 144);
  CHECK(box == zeros);
}

// When a loss is declared by time, what else is in flight is not sent again.
void a_loss_found_by_timeout_costs_one_packet() {
  World world(2);
  Host& a = world.add(0);
  Host& b = world.add(1);
  world.link(0, 1, {});
  world.connect(a, b);
  world.run(3 * kSecond);
  LinkCounters before = a.endpoint->peer(1)->connection->stats().counters;
  int large = 0;
  world.drop = [&](std::uint32_t from, Bytes bytes) { return from == 0 && bytes.size() > 1000 && ++large == 1; };
  auto source = random_bytes(4000, 1);
  std::vector<std::uint8_t> first(source.size()), second(400);
  b.endpoint->post(world.now, 0, {1, first.data(), first.size(), 1, 0, 0});
  b.endpoint->post(world.now, 0, {2, second.data(), second.size(), 2, 0, 0});
  world.run(100 * kMillisecond);
  // Three packets, the first of which is lost; one of the next transfer is in flight when 9/8 RTT have passed.
  a.endpoint->send(world.now, 1, {1, source.data(), source.size(), 1, 4, 0, kWhole, {}, 1});
  world.run(15 * kMillisecond);
  a.endpoint->send(world.now, 1, {2, source.data(), second.size(), 2, 4, 0, kWhole, {}, 2});
  CHECK(world.run(kSecond,
                  [&] { return find_event(b, EventType::received, 1) && find_event(b, EventType::received, 2); }));
  world.run(100 * kMillisecond);
  LinkCounters counters = a.endpoint->peer(1)->connection->stats().counters;
  CHECK(counters.packets_lost == before.packets_lost + 1 && counters.probe_timeouts == before.probe_timeouts);
  CHECK(counters.retransmitted_bytes > 0 && counters.retransmitted_bytes < 1472);
  CHECK(b.endpoint->peer(0)->connection->stats().counters.duplicate_data == 0);
}

void records_arrive_complete_or_not_at_all() {
  Case c;
  c.record = 700;
  c.size = 700 * 999 + 123;
  c.tolerance = 500'000;
  c.spec.loss = 0.2;
  c.settings.first_deadline = 120 * kMillisecond;
  Outcome outcome = run(c, 5);
  CHECK(!outcome.received.missing.empty());
  for (const ByteRange& range : outcome.received.missing)
    CHECK(range.offset % 700 == 0 && (range.length % 700 == 0 || range.offset + range.length == c.size));
}

void a_transfer_larger_than_the_credit_waits_for_its_buffer() {
  Case c;
  c.settings.credit = 100'000;
  c.post_late = true;
  run(c, 3);
}

void a_buffer_too_small_is_refused_on_both_sides() {
  World world(1);
  Host& a = world.add(0);
  Host& b = world.add(1);
  world.link(0, 1, {});
  world.connect(a, b);
  std::vector<std::uint8_t> source(5000, 1), destination(4000, 2);
  a.endpoint->send(world.now, 1, {1, source.data(), source.size(), 5, 1, 0, kWhole, {}, 0});
  b.endpoint->post(world.now, 0, {2, destination.data(), destination.size(), 5, 0, 0});
  CHECK(world.run(5 * kSecond,
                  [&] { return find_event(a, EventType::sent, 1) && find_event(b, EventType::received, 2); }));
  CHECK(find_event(b, EventType::received, 2)->reason == CloseReason::refused);
  CHECK(find_event(a, EventType::sent, 1)->reason == CloseReason::refused);
  CHECK(destination == std::vector<std::uint8_t>(4000, 2));
}

void many_transfers_at_once_in_both_directions() {
  World world(8);
  PipeSpec spec;
  spec.loss = 0.02;
  spec.reorder = 0.02;
  Host& a = world.add(0);
  Host& b = world.add(1);
  world.link(0, 1, spec);
  world.connect(a, b);
  constexpr std::uint64_t kCount = 600;  // more than there are slots
  std::vector<std::vector<std::uint8_t>> sources, destinations;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    sources.push_back(random_bytes(1 + i * 37 % 9000, i));
    destinations.emplace_back(sources.back().size(), 0xee);
  }
  for (std::uint64_t i = 0; i < kCount; ++i) {
    Host& from = i % 2 ? a : b;
    Host& to = i % 2 ? b : a;
    to.endpoint->post(world.now, from.rank, {1000 + i, destinations[i].data(), destinations[i].size(), i, 0, 0});
    from.endpoint->send(world.now, to.rank, {i, sources[i].data(), sources[i].size(), i, 1, 0, kWhole, {}, i});
  }
  auto count = [](const Host& host, EventType type) {
    return static_cast<std::uint64_t>(
        std::count_if(host.events.begin(), host.events.end(), [&](auto& e) { return e.type == type; }));
  };
  CHECK(world.run(60 * kSecond, [&] {
    return count(a, EventType::sent) + count(b, EventType::sent) == kCount &&
           count(a, EventType::received) + count(b, EventType::received) == kCount;
  }));
  CHECK(sources == destinations);
}

void cancelled_transfers_do_not_use_their_buffers() {
  World world(4);
  Host& a = world.add(0);
  Host& b = world.add(1);
  world.link(0, 1, {});
  world.connect(a, b);
  auto source = random_bytes(3'000'000, 1);
  std::vector<std::uint8_t> destination(source.size(), 0xee);
  b.endpoint->post(world.now, 0, {2, destination.data(), destination.size(), 5, 0, 0});
  a.endpoint->send(world.now, 1, {1, source.data(), source.size(), 5, 1, 0, kWhole, {}, 0});
  world.run(150 * kMillisecond);
  CHECK(b.endpoint->cancel(world.now, 0, 2));
  std::vector<std::uint8_t> before = destination;
  CHECK(before != std::vector<std::uint8_t>(source.size(), 0xee));
  CHECK(world.run(5 * kSecond, [&] { return find_event(a, EventType::sent, 1); }));
  CHECK(find_event(a, EventType::sent, 1)->reason == CloseReason::cancelled);
  CHECK(destination == before);
  CHECK(!b.endpoint->cancel(world.now, 0, 2));
}

// The receiver closes as soon as it has everything: its SHUT packet carries the last ACK and CLOSE.
void shut_confirms_what_arrived() {
  for (std::uint32_t tolerance : {kWhole, 900'000u}) {
    World world(6);
    Host& a = world.add(0);
    Host& b = world.add(1);
    world.link(0, 1, {});
    world.connect(a, b);
    CHECK(world.run(5 * kSecond, [&] { return connected(a, 1) && connected(b, 0); }));
    auto source = random_bytes(20'000, 1);  // fits the first window, so that no ACK is needed on the way
    std::vector<std::uint8_t> destination(source.size());
    b.endpoint->post(world.now, 0, {2, destination.data(), destination.size(), 5, 0, 0});
    world.run(kSecond);
    b.paused = world.capture = true;
    a.endpoint->send(world.now, 1, {1, source.data(), source.size(), 5, 1, 0, tolerance, {}, 0});
    world.run(100 * kMillisecond);
    for (auto& packet : world.tape)
      if (packet.to == 1) world.inject(1, a.address, packet.bytes);
    Event event;
    while (b.endpoint->poll_event(event)) b.events.push_back(event);
    CHECK(find_event(b, EventType::received, 2));
    b.endpoint->shut();
    b.paused = false;
    CHECK(world.run(5 * kSecond, [&] { return failure_of(a, 1) != Failure::none; }));
    CHECK(failure_of(a, 1) == Failure::closed);
    const Event* sent = find_event(a, EventType::sent, 1);
    CHECK(sent && sent->failure == Failure::none && sent->arrived == source.size());
  }
}

void the_same_seed_gives_the_same_run() {
  Case c;
  c.spec.loss = 0.05;
  c.spec.reorder = 0.05;
  Outcome first = run(c, 11), second = run(c, 11), other = run(c, 12);
  CHECK(first.elapsed == second.elapsed);
  CHECK(first.elapsed != other.elapsed);
}

}  // namespace

int main() {
  reliable_transfers_arrive_complete_on_a_bad_network();
  sizes_and_alignments();
  tolerant_transfers_close_early_and_lose_nothing_silently();
  a_receiver_with_enough_does_not_wait_for_retransmission();
  late_data_counts_as_arrived();
  small_transfers_do_not_cut_large_ones();
  a_packet_full_of_controls_carries_no_data();
  a_loss_found_by_timeout_costs_one_packet();
  records_arrive_complete_or_not_at_all();
  a_transfer_larger_than_the_credit_waits_for_its_buffer();
  a_buffer_too_small_is_refused_on_both_sides();
  many_transfers_at_once_in_both_directions();
  cancelled_transfers_do_not_use_their_buffers();
  shut_confirms_what_arrived();
  the_same_seed_gives_the_same_run();
  return gradwire::test::finish();
}
