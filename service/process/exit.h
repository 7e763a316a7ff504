// How this process ends, and what its exit code says to whoever starts it again.
#pragma once

namespace eta {

inline constexpr int kExitDeviceLost = 3;   // no device works any more
inline constexpr int kExitStoreFailed = 4;  // the profile store has to be opened anew
inline constexpr int kExitOutOfMemory = 5;

// A thread that has no memory and cannot answer for it ends the process with kExitOutOfMemory; any
// other exception that nobody catches is a defect, and aborts it.
void ExitWhereMemoryEnds();

// Whatever the process does meanwhile, it ends with kExitOutOfMemory after so long.
void ExitOutOfMemoryAfter(unsigned seconds);

}  // namespace eta
