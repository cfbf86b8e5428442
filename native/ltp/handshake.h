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
  // `entropy` is drawn once per process; cookies, nonces and ephemeral keys are derived from it. It is replaced at each
  // draw, so that what was drawn before cannot be computed again.
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

  Nonce fresh_nonce() { return draw(); }
  std::uint64_t fresh_number();
  EphemeralKey fresh_key() { return EphemeralKey(draw()); }
  // Of a HELLO's core and a whole ACCEPT datagram. None when the other side's public key is of low order.
  std::optional<TrafficSecrets> keys(const EphemeralKey& own, const PublicKey& other, const HelloCore& hello,
                                     Bytes accept) const;

 private:
  void put_tag(Datagram& datagram, Bytes context) const;
  Tag tag(Bytes body, Bytes context) const;

  HeldSecret draw();

  HeldSecret job_key_;
  HeldSecret key_;
  HeldSecret entropy_;
  HeldSecret cookie_key_;
};

}  // namespace gradwire::ltp
