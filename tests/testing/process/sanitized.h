// What a build with sanitizers changes that is not the product's doing.
#pragma once

namespace eta::testing {

// It runs several times as long, and keeps memory aside that was freed.
#ifdef ETA_ADDRESS_SANITIZER
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

}  // namespace eta::testing
