#include "kernels/cpu/targets.h"

#include "absl/strings/str_cat.h"
#include "hwy/highway.h"

#if HWY_ARCH_X86_64 && defined(__linux__) && (HWY_TARGETS & HWY_AVX3)
#define ETA_AVX512 1
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#else
#define ETA_AVX512 0
#endif

namespace eta::cpu {
namespace {

#if ETA_AVX512

// What the processor says of itself, in leaf 7 of CPUID.
struct Features {
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  unsigned int eax1 = 0;  // of subleaf 1, if there is one
};

Features ReadFeatures() {
  Features features;
  unsigned int last = 0;
  if (__get_cpuid_count(7, 0, &last, &features.ebx, &features.ecx, &features.edx) == 0) return {};
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  if (last >= 1) __get_cpuid_count(7, 1, &features.eax1, &ebx, &ecx, &edx);
  return features;
}

bool ProcessorHasAmx() {
  constexpr unsigned int kBFloat16 = 1u << 22;
  constexpr unsigned int kTiles = 1u << 24;
  const Features features = ReadFeatures();
  return (features.edx & kBFloat16) != 0 && (features.edx & kTiles) != 0;
}

bool ProcessorHasAmxBytes() {
  constexpr unsigned int kBytes = 1u << 25;
  return (ReadFeatures().edx & kBytes) != 0;
}

bool ProcessorHasVnni() {
  constexpr unsigned int kVnni = 1u << 11;
  return (ReadFeatures().ecx & kVnni) != 0;
}

bool ProcessorHasAvxVnni() {
  constexpr unsigned int kAvxVnni = 1u << 4;
  return (ReadFeatures().eax1 & kAvxVnni) != 0;
}

// Linux gives the state of tiles, 8 KiB for each thread, to processes that ask for it.
std::string AskForTiles() {
  constexpr unsigned long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM, Linux 5.16
  constexpr unsigned long kTileData = 18;
  if (!ProcessorHasAmx()) return "the processor has no AMX with bfloat16";
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return "";
  return absl::StrCat("the kernel gives no AMX tiles: ", std::strerror(errno));
}

#else

bool ProcessorHasAmxBytes() {
  return false;
}
bool ProcessorHasVnni() {
  return false;
}
bool ProcessorHasAvxVnni() {
  return false;
}

#endif  // ETA_AVX512

bool vnni_forbidden = false;

}  // namespace

std::vector<int64_t> AttainableTargets() {
  std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  if (targets.empty()) targets.push_back(HWY_STATIC_TARGET);
  return targets;
}

void ForceTarget(int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
}

std::string WhyNoAmx() {
#if ETA_AVX512
  if ((hwy::SupportedTargets() & HWY_AVX3) == 0) return "AMX is used beside AVX-512 only";
  static const std::string& why = *new std::string(AskForTiles());
  return why;
#else
  return "this build has no AMX";
#endif
}

bool HasAmxBytes() {
  static const bool has = ProcessorHasAmxBytes();
  return has;
}

bool HasVnni() {
  static const bool has = ProcessorHasVnni();
  return has && !vnni_forbidden;
}

bool HasAvxVnni() {
  static const bool has = ProcessorHasAvxVnni();
  return has && !vnni_forbidden;
}

void ForbidVnni(bool forbid) {
  vnni_forbidden = forbid;
}

std::string TargetName(int64_t target) {
  return hwy::TargetName(target);
}

}  // namespace eta::cpu
