#include "emulator/interface.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/route.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "emulator/packet.h"

namespace gradwire::emulator {
namespace {

// The ring must hold what a host may send between two reads: 2000 super-packets are far beyond any send buffer.
constexpr int kRingPackets = 2000;

// struct in6_ifreq; linux/ipv6.h cannot be included beside netinet/in.h.
struct AddressRequest6 {
  in6_addr address;
  uint32_t prefix;
  int interface;
};

void set_address(ifreq& value, in_addr_t address) {
  auto* place = reinterpret_cast<sockaddr_in*>(&value.ifr_addr);
  place->sin_family = AF_INET;
  place->sin_addr.s_addr = address;
}

void bring_up(int control, const char* name) {
  ifreq value = interface_request(name);
  if (ioctl(control, SIOCGIFFLAGS, &value) != 0) fail(std::string("SIOCGIFFLAGS ") + name);
  value.ifr_flags |= IFF_UP | IFF_RUNNING;
  if (ioctl(control, SIOCSIFFLAGS, &value) != 0) fail(std::string("SIOCSIFFLAGS ") + name);
}

void add_default_route(int control) {
  rtentry route{};
  for (sockaddr* end : {&route.rt_dst, &route.rt_genmask}) end->sa_family = AF_INET;
  std::string device = kInterface;
  route.rt_dev = device.data();
  route.rt_flags = RTF_UP;
  if (ioctl(control, SIOCADDRT, &route) != 0) fail("SIOCADDRT");
}

// By netlink, because the ioctl for it requires root outside of the namespace.
void set_ring(uint32_t packets) {
  struct {
    nlmsghdr header{};
    ifinfomsg interface{};
    rtattr attribute{};
    uint32_t value = 0;
  } message;
  message.header.nlmsg_len = sizeof message;
  message.header.nlmsg_type = RTM_NEWLINK;
  message.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
  message.interface.ifi_index = static_cast<int>(if_nametoindex(kInterface));
  message.attribute.rta_type = IFLA_TXQLEN;
  message.attribute.rta_len = RTA_LENGTH(sizeof(uint32_t));
  message.value = packets;
  struct {
    nlmsghdr header{};
    nlmsgerr error{};
  } answer;
  const int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  const bool sent = netlink >= 0 && send(netlink, &message, sizeof message, 0) == sizeof message;
  const bool answered = sent && recv(netlink, &answer, sizeof answer, 0) >= static_cast<ssize_t>(sizeof answer);
  if (netlink >= 0) close(netlink);
  errno = answered ? -answer.error.error : EPERM;
  if (errno != 0) fail("length of the device's ring");
}

bool is_v6(const HostConfig& config) { return config.address.find(':') != std::string::npos; }

void assign_v4(int control, const HostAddress& address, int prefix) {
  in_addr_t v4;
  std::memcpy(&v4, address.data() + 12, sizeof v4);
  ifreq value = interface_request(kInterface);
  set_address(value, v4);
  if (ioctl(control, SIOCSIFADDR, &value) != 0) fail("SIOCSIFADDR");
  set_address(value, htonl(~0u << (32 - prefix)));
  if (ioctl(control, SIOCSIFNETMASK, &value) != 0) fail("SIOCSIFNETMASK");
}

void assign_v6(const HostAddress& address, int prefix) {
  const int control = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (control < 0) fail("ipv6: socket");
  AddressRequest6 value{};
  std::memcpy(&value.address, address.data(), address.size());
  value.prefix = static_cast<uint32_t>(prefix);
  value.interface = static_cast<int>(if_nametoindex(kInterface));
  const bool done = ioctl(control, SIOCSIFADDR, &value) == 0;
  const int error = errno;
  close(control);
  errno = error;
  if (!done) fail("ipv6: address");
}

}  // namespace

void fail(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

bool write_file(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool done = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  close(fd);
  errno = error;
  return done;
}

ifreq interface_request(const char* name) {
  ifreq value{};
  std::strncpy(value.ifr_name, name, IFNAMSIZ - 1);
  return value;
}

HostAddress parse_address(const std::string& text) {
  HostAddress address{};
  uint8_t v4[4];
  if (inet_pton(AF_INET, text.c_str(), v4) == 1) return mapped(v4);
  if (inet_pton(AF_INET6, text.c_str(), address.data()) == 1) return address;
  throw std::runtime_error("'" + text + "' is not an IP address");
}

// What a kernel sends by itself (solicitations, reports of multicast groups) would be traffic that nobody asked for. So
// a host has IPv6 only if that is its address, and then neither a link-local address nor advertised ones.
void choose_family(const HostConfig& config) {
  const std::string defaults = "/proc/sys/net/ipv6/conf/default/";
  write_file(defaults + "disable_ipv6", is_v6(config) ? "0" : "1");
  write_file(defaults + "accept_ra", "0");
  write_file(defaults + "addr_gen_mode", "1");
}

void configure_interface(const HostConfig& config) {
  const int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (control < 0) fail("socket");
  bring_up(control, "lo");
  const HostAddress address = parse_address(config.address);
  if (!is_v6(config)) assign_v4(control, address, config.prefix);
  ifreq value = interface_request(kInterface);
  value.ifr_mtu = config.mtu;
  if (ioctl(control, SIOCSIFMTU, &value) != 0) fail("MTU " + std::to_string(config.mtu));
  set_ring(kRingPackets);
  bring_up(control, kInterface);
  if (config.default_route) add_default_route(control);
  close(control);
  if (is_v6(config)) assign_v6(address, config.prefix);
}

}  // namespace gradwire::emulator
