// libgradwire-dilate: preloaded into the ranks of a lab in dilated time. Clocks run slower by the factor
// GRADWIRE_DILATE and waits last longer by it, so that a program on links that are slower by the same factor sees the
// network, its own pauses and its timeouts as requested, and measures undilated seconds.
//
// Clocks agree in all processes of a lab: they count from GRADWIRE_DILATE_ORIGIN, nanoseconds on the machine's
// monotonic clock. Clocks of processor time are left alone. The kernel's own timers are not reached from here; what TCP
// reports (TCP_INFO) is converted. Not covered: programs without the C library's calls (static ones, Go), and raw
// system calls.
#include <dlfcn.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int64_t kSecond = 1'000'000'000;
// Beyond any real wait, and far from where products with the factor overflow.
constexpr time_t kForever = 4'000'000'000;
// A condition variable does not say which clock its deadline belongs to. A deadline above this many seconds belongs to
// the realtime clock (it is after 2001): no machine's monotonic clock counts thirty years.
constexpr time_t kFirstRealtime = 1'000'000'000;

template <class Function>
Function next(const char* name, const char* version = nullptr) {
  void* found = version ? dlvsym(RTLD_NEXT, name, version) : nullptr;
  return reinterpret_cast<Function>(found ? found : dlsym(RTLD_NEXT, name));
}
// The C library's function of the same name.
#define REAL(name) static const auto real = next<decltype(&::name)>(#name)

int64_t machine_now(clockid_t clock) {
  REAL(clock_gettime);
  timespec time{};
  real(clock, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

struct Settings {
  double factor = 1;
  int64_t origin[CLOCK_TAI + 1] = {};  // of each clock, at the same moment

  Settings() {
    const char* text = std::getenv("GRADWIRE_DILATE");
    const double given = text ? std::strtod(text, nullptr) : 1;
    if (given >= 1) factor = given;
    const char* start = std::getenv("GRADWIRE_DILATE_ORIGIN");
    const int64_t now = machine_now(CLOCK_MONOTONIC), age = start ? now - std::strtoll(start, nullptr, 10) : 0;
    for (clockid_t clock = 0; clock <= CLOCK_TAI; ++clock) origin[clock] = machine_now(clock) - age;
  }
};

const Settings& settings() {
  static const Settings value;
  return value;
}

bool dilated(clockid_t clock) {
  switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_REALTIME_COARSE:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_BOOTTIME:
    case CLOCK_TAI: return true;
    default: return false;
  }
}

timespec as_timespec(int64_t nanoseconds) {
  int64_t seconds = nanoseconds / kSecond, rest = nanoseconds % kSecond;
  if (rest < 0) --seconds, rest += kSecond;
  return {static_cast<time_t>(seconds), static_cast<long>(rest)};
}

int64_t nanoseconds_of(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }

int64_t longer(int64_t duration) { return static_cast<int64_t>(static_cast<double>(duration) * settings().factor); }
int64_t shorter(int64_t duration) { return static_cast<int64_t>(static_cast<double>(duration) / settings().factor); }

int64_t shown(clockid_t clock, int64_t machine) {
  const int64_t origin = settings().origin[clock];
  return origin + shorter(machine - origin);
}

// A duration; invalid ones are left for the kernel to refuse.
timespec stretched(const timespec& time) {
  if (time.tv_sec < 0 || time.tv_sec > kForever || time.tv_nsec < 0 || time.tv_nsec >= kSecond) return time;
  return as_timespec(longer(nanoseconds_of(time)));
}

timeval stretched(const timeval& time) {
  if (time.tv_sec < 0 || time.tv_sec > kForever || time.tv_usec < 0 || time.tv_usec >= 1'000'000) return time;
  const int64_t microseconds = longer(time.tv_sec * 1'000'000 + time.tv_usec);
  return {static_cast<time_t>(microseconds / 1'000'000), static_cast<suseconds_t>(microseconds % 1'000'000)};
}

int stretched(int milliseconds) {
  if (milliseconds <= 0) return milliseconds;
  return static_cast<int>(std::min(static_cast<double>(milliseconds) * settings().factor, double{INT_MAX}));
}

// A time of a clock as this process sees it, as the machine's.
timespec machine_time(clockid_t clock, const timespec& time) {
  if (!dilated(clock) || time.tv_sec < 0 || time.tv_sec > kForever || time.tv_nsec < 0 || time.tv_nsec >= kSecond)
    return time;
  const int64_t origin = settings().origin[clock];
  return as_timespec(origin + longer(nanoseconds_of(time) - origin));
}

// The remaining time that an interrupted wait reports.
void shrink(timespec* rest) {
  if (rest != nullptr) *rest = as_timespec(shorter(nanoseconds_of(*rest)));
}

template <class Value>
void divide(void* info, socklen_t size, size_t offset) {
  if (offset + sizeof(Value) > size) return;
  Value value;
  char* place = static_cast<char*>(info) + offset;
  std::memcpy(&value, place, sizeof value);
  value = static_cast<Value>(static_cast<double>(value) / settings().factor);
  std::memcpy(place, &value, sizeof value);
}

void multiply_rate(void* info, socklen_t size, size_t offset) {
  if (offset + sizeof(uint64_t) > size) return;
  uint64_t value;
  char* place = static_cast<char*>(info) + offset;
  std::memcpy(&value, place, sizeof value);
  if (value > UINT64_MAX / 4096) return;  // all ones: no limit
  value = static_cast<uint64_t>(static_cast<double>(value) * settings().factor);
  std::memcpy(place, &value, sizeof value);
}

void convert(void* info, socklen_t size) {
  for (size_t offset : {offsetof(tcp_info, tcpi_rto), offsetof(tcp_info, tcpi_ato), offsetof(tcp_info, tcpi_rtt),
                        offsetof(tcp_info, tcpi_rttvar), offsetof(tcp_info, tcpi_rcv_rtt),
                        offsetof(tcp_info, tcpi_last_data_sent), offsetof(tcp_info, tcpi_last_ack_sent),
                        offsetof(tcp_info, tcpi_last_data_recv), offsetof(tcp_info, tcpi_last_ack_recv)})
    divide<uint32_t>(info, size, offset);
  if (offsetof(tcp_info, tcpi_min_rtt) + sizeof(uint32_t) <= size) {
    uint32_t least;
    std::memcpy(&least, static_cast<char*>(info) + offsetof(tcp_info, tcpi_min_rtt), sizeof least);
    if (least != UINT32_MAX) divide<uint32_t>(info, size, offsetof(tcp_info, tcpi_min_rtt));  // all ones: unknown
  }
  for (size_t offset : {offsetof(tcp_info, tcpi_busy_time), offsetof(tcp_info, tcpi_rwnd_limited),
                        offsetof(tcp_info, tcpi_sndbuf_limited)})
    divide<uint64_t>(info, size, offset);
  for (size_t offset : {offsetof(tcp_info, tcpi_pacing_rate), offsetof(tcp_info, tcpi_max_pacing_rate),
                        offsetof(tcp_info, tcpi_delivery_rate)})
    multiply_rate(info, size, offset);
}

}  // namespace

// Clocks.

EXPORT int clock_gettime(clockid_t clock, timespec* time) noexcept {
  REAL(clock_gettime);
  const int code = real(clock, time);
  if (code == 0 && dilated(clock)) *time = as_timespec(shown(clock, nanoseconds_of(*time)));
  return code;
}

EXPORT int gettimeofday(timeval* time, void* zone) noexcept {
  REAL(gettimeofday);
  const int code = real(time, zone);
  if (code == 0) {
    const timespec seen = as_timespec(shown(CLOCK_REALTIME, time->tv_sec * kSecond + time->tv_usec * 1000));
    *time = {seen.tv_sec, static_cast<suseconds_t>(seen.tv_nsec / 1000)};
  }
  return code;
}

EXPORT time_t time(time_t* out) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}

EXPORT int timespec_get(timespec* out, int base) noexcept {
  return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, out) == 0 ? base : 0;
}

// Pauses.

EXPORT int nanosleep(const timespec* wanted, timespec* rest) {
  REAL(nanosleep);
  if (wanted == nullptr) return real(wanted, rest);
  const timespec longer_wait = stretched(*wanted);
  const int code = real(&longer_wait, rest);
  if (code != 0 && errno == EINTR) shrink(rest);
  return code;
}

EXPORT int clock_nanosleep(clockid_t clock, int flags, const timespec* wanted, timespec* rest) {
  REAL(clock_nanosleep);
  if (wanted == nullptr || !dilated(clock)) return real(clock, flags, wanted, rest);
  const bool absolute = (flags & TIMER_ABSTIME) != 0;
  const timespec until = absolute ? machine_time(clock, *wanted) : stretched(*wanted);
  const int code = real(clock, flags, &until, rest);
  if (code == EINTR && !absolute) shrink(rest);
  return code;
}

EXPORT int usleep(useconds_t microseconds) {
  const timespec wanted = as_timespec(int64_t{microseconds} * 1000);
  return nanosleep(&wanted, nullptr);
}

EXPORT unsigned sleep(unsigned seconds) {
  const timespec wanted{static_cast<time_t>(seconds), 0};
  timespec rest{};
  return nanosleep(&wanted, &rest) == 0 ? 0 : static_cast<unsigned>(rest.tv_sec + (rest.tv_nsec > 0));
}

// Waits for descriptors.

EXPORT int poll(pollfd* watched, nfds_t count, int timeout) {
  REAL(poll);
  return real(watched, count, stretched(timeout));
}

EXPORT int __poll_chk(pollfd* watched, nfds_t count, int timeout, size_t) { return poll(watched, count, timeout); }

EXPORT int ppoll(pollfd* watched, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  REAL(ppoll);
  if (timeout == nullptr) return real(watched, count, timeout, mask);
  const timespec limit = stretched(*timeout);
  return real(watched, count, &limit, mask);
}

EXPORT int __ppoll_chk(pollfd* watched, nfds_t count, const timespec* timeout, const sigset_t* mask, size_t) {
  return ppoll(watched, count, timeout, mask);
}

EXPORT int select(int count, fd_set* readable, fd_set* writable, fd_set* failed, timeval* timeout) {
  REAL(select);
  if (timeout == nullptr) return real(count, readable, writable, failed, timeout);
  timeval limit = stretched(*timeout);
  const int code = real(count, readable, writable, failed, &limit);
  const int64_t rest = shorter(limit.tv_sec * 1'000'000 + limit.tv_usec);  // the kernel leaves what is left
  *timeout = {static_cast<time_t>(rest / 1'000'000), static_cast<suseconds_t>(rest % 1'000'000)};
  return code;
}

EXPORT int pselect(int count, fd_set* readable, fd_set* writable, fd_set* failed, const timespec* timeout,
                   const sigset_t* mask) {
  REAL(pselect);
  if (timeout == nullptr) return real(count, readable, writable, failed, timeout, mask);
  const timespec limit = stretched(*timeout);
  return real(count, readable, writable, failed, &limit, mask);
}

EXPORT int epoll_wait(int poll_fd, epoll_event* events, int most, int timeout) {
  REAL(epoll_wait);
  return real(poll_fd, events, most, stretched(timeout));
}

EXPORT int epoll_pwait(int poll_fd, epoll_event* events, int most, int timeout, const sigset_t* mask) {
  REAL(epoll_pwait);
  return real(poll_fd, events, most, stretched(timeout), mask);
}

using EpollPwait2 = int (*)(int, epoll_event*, int, const timespec*, const sigset_t*);  // since glibc 2.35
EXPORT int epoll_pwait2(int poll_fd, epoll_event* events, int most, const timespec* timeout, const sigset_t* mask) {
  static const auto real = next<EpollPwait2>("epoll_pwait2");
  if (real == nullptr) {
    errno = ENOSYS;
    return -1;
  }
  if (timeout == nullptr) return real(poll_fd, events, most, timeout, mask);
  const timespec limit = stretched(*timeout);
  return real(poll_fd, events, most, &limit, mask);
}

EXPORT int timerfd_settime(int fd, int flags, const itimerspec* wanted, itimerspec* before) noexcept {
  REAL(timerfd_settime);
  if (wanted == nullptr) return real(fd, flags, wanted, before);
  itimerspec timer{stretched(wanted->it_interval), stretched(wanted->it_value)};
  if ((flags & TFD_TIMER_ABSTIME) != 0 && (wanted->it_value.tv_sec != 0 || wanted->it_value.tv_nsec != 0)) {
    const clockid_t clock = wanted->it_value.tv_sec < kFirstRealtime ? CLOCK_MONOTONIC : CLOCK_REALTIME;
    timer.it_value = machine_time(clock, wanted->it_value);
  }
  const int code = real(fd, flags, &timer, before);
  if (code == 0 && before != nullptr) {
    shrink(&before->it_interval);
    shrink(&before->it_value);
  }
  return code;
}

EXPORT int setitimer(__itimer_which_t which, const itimerval* wanted, itimerval* before) noexcept {
  static const auto real = next<int (*)(__itimer_which_t, const itimerval*, itimerval*)>("setitimer");
  if (wanted == nullptr || which != ITIMER_REAL) return real(which, wanted, before);
  const itimerval timer{stretched(wanted->it_interval), stretched(wanted->it_value)};
  return real(which, &timer, before);
}

// Waits for other threads.

EXPORT int sem_timedwait(sem_t* semaphore, const timespec* deadline) {
  REAL(sem_timedwait);
  const timespec until = machine_time(CLOCK_REALTIME, *deadline);
  return real(semaphore, &until);
}

EXPORT int sem_clockwait(sem_t* semaphore, clockid_t clock, const timespec* deadline) {
  static const auto real = next<int (*)(sem_t*, clockid_t, const timespec*)>("sem_clockwait");
  const timespec until = machine_time(clock, *deadline);
  return real(semaphore, clock, &until);
}

EXPORT int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* deadline) {
  using Wait = int (*)(pthread_cond_t*, pthread_mutex_t*, const timespec*);
  // By version: without it x86-64's C library returns the function for its oldest kind of condition variables.
  static const auto real = next<Wait>("pthread_cond_timedwait", "GLIBC_2.3.2");
  const clockid_t clock = deadline->tv_sec < kFirstRealtime ? CLOCK_MONOTONIC : CLOCK_REALTIME;
  const timespec until = machine_time(clock, *deadline);
  return real(condition, mutex, &until);
}

EXPORT int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                  const timespec* deadline) {
  using Wait = int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
  static const auto real = next<Wait>("pthread_cond_clockwait");
  const timespec until = machine_time(clock, *deadline);
  return real(condition, mutex, clock, &until);
}

EXPORT int pthread_mutex_timedlock(pthread_mutex_t* mutex, const timespec* deadline) noexcept {
  REAL(pthread_mutex_timedlock);
  const timespec until = machine_time(CLOCK_REALTIME, *deadline);
  return real(mutex, &until);
}

// Sockets.

EXPORT int setsockopt(int fd, int level, int option, const void* value, socklen_t size) noexcept {
  REAL(setsockopt);
  if (level == SOL_SOCKET && (option == SO_RCVTIMEO || option == SO_SNDTIMEO) && size >= sizeof(timeval)) {
    timeval limit;
    std::memcpy(&limit, value, sizeof limit);
    limit = stretched(limit);
    return real(fd, level, option, &limit, sizeof limit);
  }
  if (level == IPPROTO_TCP && option == TCP_USER_TIMEOUT && size >= sizeof(int)) {
    int limit;
    std::memcpy(&limit, value, sizeof limit);
    limit = stretched(limit);
    return real(fd, level, option, &limit, sizeof limit);
  }
  return real(fd, level, option, value, size);
}

EXPORT int getsockopt(int fd, int level, int option, void* value, socklen_t* size) noexcept {
  REAL(getsockopt);
  const int code = real(fd, level, option, value, size);
  if (code == 0 && level == IPPROTO_TCP && option == TCP_INFO) convert(value, *size);
  return code;
}
