// Handshake: tags, cookies, nonces and keys of the handshake, without state of peers. docs/ltp.md section 5.
#pragma once
#include <vector>

#include "core/address.h"
#include "core/crypto.h"
#include "core/time.h"
#include "ltp/keys.h"
#include "ltp/packet.h"

namespace gradwire::ltp {

using Datagram = std::vector<std::uint8_t>;

class Handshake {
 public:
  // `entropy` is drawn once per process; cookies and nonces are derived from it.
  Handshake(Bytes job_secret, const Secret& entropy);

  // A packet with its tag, computed over body and context.
  template <class P>
  Datagram sealed(const P& packet, Bytes context = {}) const {
    Datagram datagram(kBaseDatagram);
    Writer out(MutableBytes(datagram).first(kBaseDatagram - kTagSize));
    write(out, packet);
    datagram.resize(out.size() + kTagSize);
    put_tag(datagram, context);
    return datagram;
  }
  bool authentic(Bytes datagram, Bytes context = {}) const;

  // A cookie proves that its holder receives datagrams at `from`; nothing is stored for it.
  Cookie cookie(Time now, const Address& from, const Hello& hello) const;
  bool cookie_valid(Time now, const Address& from, const Hello& hello) const;

  Nonce fresh_nonce();
  std::uint64_t fresh_number();
  // The HELLO without its cookie: the context of ACCEPT's tag and of the traffic keys.
  static Datagram core(const Hello& hello);
  TrafficSecrets keys(const Hello& hello, const Accept& accept) const;

 private:
  void put_tag(Datagram& datagram, Bytes context) const;
  Tag tag(Bytes body, Bytes context) const;

  Datagram job_secret_;
  Secret key_;
  Secret entropy_;
  Secret cookie_key_;
  std::uint64_t drawn_ = 0;
};

}  // namespace gradwire::ltp
