// How much of a quantity's variance lies between documents, the rest being within them: the paper's
// one-way ANOVA (its appendix on runtime contextuality). The mean over documents is taken off at
// every position first, since density falls with position by itself.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace eta {

// `documents` [N][rows], the same positions in each. `without` leaves one document out. Nothing for
// fewer than two documents, or without variance.
std::optional<double> BetweenDocuments(std::span<const std::vector<double>> documents,
                                       std::optional<size_t> without = std::nullopt);

}  // namespace eta
