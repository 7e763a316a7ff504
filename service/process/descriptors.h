// What Protocol Buffers knows of the types of our messages, built at once.
//
// Else it is built when a type is first asked for, to digest a request or to pack an error's
// detail, and a failed allocation in the middle of that leaves it half done: the next who asks
// crashes.
#pragma once

namespace eta {

// std::bad_alloc ends the process that calls it before it serves anybody. Thread-safe.
void BuildDescriptors();

}  // namespace eta
