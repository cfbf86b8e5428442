#include "emulator/host_device.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "emulator/interface.h"
#include "emulator/packet.h"

#ifndef TUN_F_USO4
#define TUN_F_USO4 0x20
#define TUN_F_USO6 0x40
#endif

namespace gradwire::emulator {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Returns to the original namespace when it is destroyed.
class NamespaceGuard {
 public:
  explicit NamespaceGuard(int network = -1) : home_(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)) {
    if (home_ < 0) fail("open /proc/self/ns/net");
    if (network >= 0 && setns(network, CLONE_NEWNET) != 0) fail("setns");
  }
  ~NamespaceGuard() {
    setns(home_, CLONE_NEWNET);
    close(home_);
  }
  NamespaceGuard(const NamespaceGuard&) = delete;
  NamespaceGuard& operator=(const NamespaceGuard&) = delete;
  int home() const { return home_; }

 private:
  int home_;
};

// A namespace accepts only congestion controls that the machine allows to all users; root may allow one for the time it
// takes to choose it. The lock keeps two labs from restoring each other's list.
void choose_congestion(const std::string& name, int home, int network) {
  const std::string setting = "/proc/sys/net/ipv4/tcp_congestion_control";
  if (name == "-" || write_file(setting, name)) return;
  const std::string allowed_path = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
  setns(home, CLONE_NEWNET);
  const int lock = open("/proc/sys/net/ipv4/tcp_allowed_congestion_control", O_RDONLY | O_CLOEXEC);
  if (lock >= 0) flock(lock, LOCK_EX);
  const std::string allowed = read_file(allowed_path);
  const bool widened = write_file(allowed_path, read_file("/proc/sys/net/ipv4/tcp_available_congestion_control"));
  setns(network, CLONE_NEWNET);
  const bool chosen = write_file(setting, name);
  setns(home, CLONE_NEWNET);
  if (widened) write_file(allowed_path, allowed);
  if (lock >= 0) close(lock);
  setns(network, CLONE_NEWNET);
  if (!chosen) {
    const std::string list = allowed.substr(0, allowed.find_last_not_of(" \n") + 1);
    throw std::runtime_error("congestion: TCP congestion control '" + name + "' cannot be used here; allowed are: " +
                             list + " (root may use others, after modprobe tcp_" + name + ")");
  }
}

void apply_settings(const std::vector<std::string>& settings) {
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) throw std::runtime_error(setting + ": is not NAME=VALUE");
    if (!write_file("/proc/sys/net/ipv4/" + setting.substr(0, equals), setting.substr(equals + 1))) fail(setting);
  }
}

int open_device(bool& segmentation) {
  const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) fail("open /dev/net/tun");
  ifreq value = interface_request(kInterface);
  value.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
  if (ioctl(fd, TUNSETIFF, &value) != 0) fail("TUNSETIFF");
  int header = sizeof(OffloadHeader);
  if (ioctl(fd, TUNSETVNETHDRSZ, &header) != 0) fail("TUNSETVNETHDRSZ");
  const unsigned tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
  segmentation = ioctl(fd, TUNSETOFFLOAD, tcp | TUN_F_USO4 | TUN_F_USO6) == 0 || ioctl(fd, TUNSETOFFLOAD, tcp) == 0;
  return fd;
}

}  // namespace

bool gain_privileges() {
  {
    NamespaceGuard guard;
    if (unshare(CLONE_NEWNET) == 0) return false;
  }
  if (errno != EPERM) fail("network namespaces");
  const uid_t user = getuid();
  const gid_t group = getgid();
  if (unshare(CLONE_NEWUSER) != 0) fail("no root, and user namespaces are not allowed");
  write_file("/proc/self/setgroups", "deny");
  const std::string uid = std::to_string(user), gid = std::to_string(group);
  if (!write_file("/proc/self/uid_map", uid + " " + uid + " 1")) fail("uid_map");
  if (!write_file("/proc/self/gid_map", gid + " " + gid + " 1")) fail("gid_map");
  return true;
}

HostDevice open_host(const HostConfig& config) {
  NamespaceGuard guard;
  HostDevice host;
  if (unshare(CLONE_NEWNET) != 0) fail("a new network namespace");
  host.network = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  if (host.network < 0) fail("open /proc/self/ns/net");
  choose_family(config);
  const std::string gid = std::to_string(getgid());
  write_file("/proc/sys/net/ipv4/ping_group_range", gid + " " + gid);  // ping works without root
  host.device = open_device(host.segmentation);
  configure_interface(config);
  choose_congestion(config.congestion, guard.home(), host.network);
  apply_settings(config.settings);
  host.address = parse_address(config.address);
  return host;
}

uint64_t device_drops(const HostDevice& host) {
  NamespaceGuard guard(host.network);
  std::ifstream table("/proc/thread-self/net/dev");
  for (std::string line; std::getline(table, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.find(kInterface) > colon) continue;
    std::istringstream fields(line.substr(colon + 1));
    uint64_t value = 0;
    for (int i = 0; i < 12; ++i) fields >> value;  // eight for receive, then bytes, packets, errors, drops
    return value;
  }
  return 0;
}

}  // namespace gradwire::emulator
