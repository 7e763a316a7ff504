// What sanitizers change that is not the product's fault.
#pragma once

namespace eta::testing {

// With the address sanitizer programs run several times as long, and freed memory is kept aside.
#ifdef ETA_ADDRESS_SANITIZER
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

}  // namespace eta::testing
