// Which of a set of tokens begins at each place of a text: all places in one pass.
//
// An Aho-Corasick automaton of the tokens read backwards, which runs over the text backwards. What
// it has seen at a place is what begins there, so the longest token is known for every place in a
// time linear in the text, however many tokens there are and however they overlap.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace eta {

// Immutable after construction; thread-safe.
class TokenAutomaton {
 public:
  struct Match {
    size_t begin;
    size_t size;
    int32_t token;  // index
  };

  TokenAutomaton() = default;
  // No token is empty; of equal ones the first counts. Their bytes are not kept.
  explicit TokenAutomaton(const std::vector<std::string_view>& tokens);

  bool empty() const { return nodes_.empty(); }

  // Adds, for each place from the last to the first at which a token begins, the longest one.
  // `text` begins at `offset` of what the matches count in.
  void Find(std::string_view text, size_t offset, std::vector<Match>& matches) const;

 private:
  // A suffix of a token.
  struct Node {
    uint32_t first_edge = 0;
    uint32_t edges = 0;
    uint32_t fallback = 0;  // the longest proper prefix, read in the text, that is a node too
    int32_t token = -1;     // the longest that begins here
    uint32_t size = 0;      // of that token
  };

  // The node for `byte` before what `node` stands for; 0: there is none.
  uint32_t Child(uint32_t node, uint8_t byte) const;
  uint32_t Next(uint32_t node, uint8_t byte) const;

  std::vector<Node> nodes_;          // the root first, then by depth
  std::vector<uint8_t> edge_bytes_;  // of each node together, ascending
  std::vector<uint32_t> edge_nodes_;
  std::array<uint32_t, 256> root_{};  // children of the root
};

}  // namespace eta
