#include "core/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cstring>
#include <stdexcept>

namespace gradwire {
namespace {

constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

void set_v4(Address& address, const in_addr& v4) {
  std::memcpy(address.ip.data(), kMapped, sizeof kMapped);
  std::memcpy(address.ip.data() + sizeof kMapped, &v4, sizeof v4);
}

}  // namespace

bool is_v4(const Address& address) { return std::memcmp(address.ip.data(), kMapped, sizeof kMapped) == 0; }

Address parse_address(const std::string& host, std::uint16_t port) {
  Address address;
  address.port = port;
  std::string plain = host.substr(0, host.find('%'));
  if (in_addr v4; inet_pton(AF_INET, plain.c_str(), &v4) == 1) {
    set_v4(address, v4);
  } else if (inet_pton(AF_INET6, plain.c_str(), address.ip.data()) != 1) {
    throw std::invalid_argument("'" + host + "' is not an IPv4 or IPv6 address");
  }
  if (plain.size() < host.size()) address.scope = if_nametoindex(host.c_str() + plain.size() + 1);
  return address;
}

std::string format_address(const Address& address) {
  char text[INET6_ADDRSTRLEN];
  bool v4 = is_v4(address);
  inet_ntop(v4 ? AF_INET : AF_INET6, address.ip.data() + (v4 ? sizeof kMapped : 0), text, sizeof text);
  std::string out = v4 ? "" : "[";
  out.append(text).append(v4 ? ":" : "]:").append(std::to_string(address.port));
  return out;
}

socklen_t to_kernel(const Address& address, int family, sockaddr_storage& out) {
  std::memset(&out, 0, sizeof out);
  if (family == AF_INET) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(out);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(address.port);
    std::memcpy(&v4.sin_addr, address.ip.data() + sizeof kMapped, 4);
    return sizeof v4;
  }
  auto& v6 = reinterpret_cast<sockaddr_in6&>(out);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(address.port);
  v6.sin6_scope_id = address.scope;
  std::memcpy(&v6.sin6_addr, address.ip.data(), 16);
  return sizeof v6;
}

Address from_kernel(const sockaddr_storage& in) {
  Address address;
  if (in.ss_family == AF_INET) {
    auto& v4 = reinterpret_cast<const sockaddr_in&>(in);
    set_v4(address, v4.sin_addr);
    address.port = ntohs(v4.sin_port);
  } else if (in.ss_family == AF_INET6) {
    auto& v6 = reinterpret_cast<const sockaddr_in6&>(in);
    std::memcpy(address.ip.data(), &v6.sin6_addr, 16);
    address.port = ntohs(v6.sin6_port);
    address.scope = v6.sin6_scope_id;
  }
  return address;
}

}  // namespace gradwire
