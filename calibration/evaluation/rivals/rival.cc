#include "calibration/evaluation/rivals/rival.h"

namespace eta {

void Rival::Watch(std::span<const RivalHead>, RivalMemory&) const {}

void Rival::AddWatched(const RivalMemory&, RivalMemory&) const {}

void Rival::Look(const RivalHead&, std::span<float>) const {}

void Rival::AdmitAndRemember(const RivalHead& head, std::span<uint8_t> admitted,
                             RivalMemory&) const {
  Admit(head, admitted);
}

}  // namespace eta
