// The instruction sets of the CPU backend that both this build and this machine have.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace eta::cpu {

// The targets that can run here, best first; never empty. Values are Highway's HWY_* bits.
std::vector<int64_t> AttainableTargets();

// Makes all later ops run on `target`, one of AttainableTargets(); 0 returns to the automatic
// choice. For tests and measurements. Not to be called while an op runs.
void ForceTarget(int64_t target);

// Why the ops may not use AMX, the tiles of recent Intel processors and their bfloat16 products:
// this build, the processor, the kernel, or a forced target below AVX-512. Empty: they may. The
// kernel is asked for tiles once in the life of the process. May be called from any thread.
std::string WhyNoAmx();

// Whether the tiles multiply bytes too. REQUIRES: WhyNoAmx() is empty.
bool HasAmxBytes();

// Whether products of bytes use VNNI, which AVX-512 alone does not have, or AVX-VNNI, which AVX2
// alone does not have: the processor has it, and no test forbade it.
bool HasVnni();
bool HasAvxVnni();
// For tests; as ForceTarget().
void ForbidVnni(bool forbid);

// "AVX3", "AVX2", "SSSE3", "NEON", ...
std::string TargetName(int64_t target);

}  // namespace eta::cpu
