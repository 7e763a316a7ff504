// OpenSSL objects that are freed with their owner: Owned<EVP_PKEY, EVP_PKEY_free>.
#pragma once

#include <memory>

namespace eta {

template <auto function>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    function(object);
  }
};
template <typename T, auto function>
using Owned = std::unique_ptr<T, Freed<function>>;

}  // namespace eta
