#include "core/key_exchange.h"

#include <cstring>
#include <stdexcept>

#include "bindings/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace gradwire {
namespace {

void copy(const nb::bytes& from, MutableBytes to, const char* what) {
  if (from.size() != to.size()) throw std::invalid_argument(what);
  std::memcpy(to.data(), from.data(), to.size());
}

nb::bytes as_bytes(Bytes bytes) { return nb::bytes(bytes.data(), bytes.size()); }

}  // namespace

void bind_key_exchange(nb::module_& m) {
  nb::class_<EphemeralKey>(m, "EphemeralKey", "An X25519 key pair, to be used for one exchange.")
      .def(
          "__init__",
          [](EphemeralKey* self, const nb::bytes& seed) {
            HeldSecret held;
            copy(seed, held, "seed: 32 random bytes are needed");
            new (self) EphemeralKey(held);
          },
          "seed"_a)
      .def_prop_ro("public_key", [](const EphemeralKey& key) { return as_bytes(key.public_key()); })
      .def(
          "agree",
          [](const EphemeralKey& key, const nb::bytes& other) {
            PublicKey theirs;
            copy(other, theirs, "a public key has 32 bytes");
            auto shared = key.agree(theirs);
            if (!shared) throw std::invalid_argument("a public key of low order");
            return as_bytes(*shared);
          },
          "other"_a, "The secret shared with the holder of the other private key; ValueError for a weak public key.");
}

}  // namespace gradwire
