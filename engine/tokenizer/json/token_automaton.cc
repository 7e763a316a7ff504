// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/json/token_automaton.h"

#include <algorithm>
#include <numeric>

namespace eta {
namespace {

// The byte `depth` places before the end of a token; -1: it is not that long.
int ByteFromEnd(std::string_view token, size_t depth) {
  return depth < token.size() ? static_cast<uint8_t>(token[token.size() - 1 - depth]) : -1;
}

// Tokens that agree in their last `depth` bytes, in the order of their ends.
struct Range {
  size_t begin;
  size_t end;
  size_t depth;
};

}  // namespace

TokenAutomaton::TokenAutomaton(const std::vector<std::string_view>& tokens) {
  if (tokens.empty()) return;
  std::vector<size_t> order(tokens.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&tokens](size_t a, size_t b) {
    return std::lexicographical_compare(
        tokens[a].rbegin(), tokens[a].rend(), tokens[b].rbegin(), tokens[b].rend(),
        [](char x, char y) { return static_cast<uint8_t>(x) < static_cast<uint8_t>(y); });
  });
  std::vector<Range> ranges = {{.begin = 0, .end = tokens.size(), .depth = 0}};
  nodes_.emplace_back();
  // Node by node, depth by depth: what a node falls back to is known before its children are made.
  for (size_t node = 0; node < nodes_.size(); ++node) {
    auto [begin, end, depth] = ranges[node];
    if (ByteFromEnd(tokens[order[begin]], depth) < 0) {
      nodes_[node].token = static_cast<int32_t>(order[begin]);
      nodes_[node].size = static_cast<uint32_t>(depth);
      while (begin < end && ByteFromEnd(tokens[order[begin]], depth) < 0) ++begin;
    } else if (node > 0) {
      const Node& fallback = nodes_[nodes_[node].fallback];
      nodes_[node].token = fallback.token;
      nodes_[node].size = fallback.size;
    }
    nodes_[node].first_edge = static_cast<uint32_t>(edge_bytes_.size());
    while (begin < end) {
      const int byte = ByteFromEnd(tokens[order[begin]], depth);
      size_t same = begin + 1;
      while (same < end && ByteFromEnd(tokens[order[same]], depth) == byte) ++same;
      const auto child = static_cast<uint32_t>(nodes_.size());
      edge_bytes_.push_back(static_cast<uint8_t>(byte));
      edge_nodes_.push_back(child);
      ++nodes_[node].edges;
      ranges.push_back({.begin = begin, .end = same, .depth = depth + 1});
      nodes_.emplace_back();
      if (node == 0) {
        root_[static_cast<size_t>(byte)] = child;
      } else {
        nodes_[child].fallback = Next(nodes_[node].fallback, static_cast<uint8_t>(byte));
      }
      begin = same;
    }
  }
}

uint32_t TokenAutomaton::Child(uint32_t node, uint8_t byte) const {
  if (node == 0) return root_[byte];
  const auto first = edge_bytes_.begin() + nodes_[node].first_edge;
  const auto last = first + nodes_[node].edges;
  const auto found = std::lower_bound(first, last, byte);
  if (found == last || *found != byte) return 0;
  return edge_nodes_[static_cast<size_t>(found - edge_bytes_.begin())];
}

uint32_t TokenAutomaton::Next(uint32_t node, uint8_t byte) const {
  for (;;) {
    const uint32_t child = Child(node, byte);
    if (child != 0 || node == 0) return child;
    node = nodes_[node].fallback;
  }
}

void TokenAutomaton::Find(std::string_view text, size_t offset, std::vector<Match>& matches) const {
  if (nodes_.empty()) return;
  uint32_t node = 0;
  for (size_t at = text.size(); at-- > 0;) {
    node = Next(node, static_cast<uint8_t>(text[at]));
    if (nodes_[node].token < 0) continue;
    matches.push_back(
        {.begin = offset + at, .size = nodes_[node].size, .token = nodes_[node].token});
  }
}

}  // namespace eta
