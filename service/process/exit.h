// How this process ends, and what its exit code says to whoever starts it again.
#pragma once

namespace eta {

inline constexpr int kExitDeviceLost = 3;   // no device works any more
inline constexpr int kExitStoreFailed = 4;  // the profile store has to be opened anew
inline constexpr int kExitOutOfMemory = 5;
inline constexpr int kExitHung = 6;  // a step, or the stop itself, came to no end

// A thread that has no memory and cannot answer for it ends the process with kExitOutOfMemory; any
// other exception that nobody catches is a defect, and aborts it.
void ExitWhereMemoryEnds();

// Whatever the process does meanwhile, it ends with this code after so long. A later call replaces
// an earlier one. From any thread.
void ExitAfter(unsigned seconds, int code);

}  // namespace eta
