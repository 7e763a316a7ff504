// Equal documents, of which calibration uses one: a copy on the other side of the split would be
// verified on what it was made from.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace eta {

// Keeps the first of equal documents, in order. Returns how many it removed.
template <typename Document>
int64_t RemoveEqual(std::vector<Document>& documents) {
  const auto less = [](const Document* a, const Document* b) { return *a < *b; };
  std::set<const Document*, decltype(less)> seen(less);
  std::vector<Document> kept;
  kept.reserve(documents.size());  // the set points into it
  for (Document& document : documents) {
    kept.push_back(std::move(document));
    if (!seen.insert(&kept.back()).second) kept.pop_back();
  }
  const auto removed = static_cast<int64_t>(documents.size() - kept.size());
  documents = std::move(kept);
  return removed;
}

}  // namespace eta
