// Large blocks of the heap go back to the system as soon as they are freed.
//
// Left to itself the C library keeps blocks as large as any that it has seen freed, in the arena of
// whichever thread asked: each arena that a calibration meets stays 10 MB and more larger for good
// (found by the soak).
#pragma once

namespace eta {

// For the whole process; before its threads begin.
void ReturnLargeBlocks();

}  // namespace eta
