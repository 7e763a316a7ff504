// Which names may be values of a label. Profiles and tenants are named by clients, and every value
// is a series for as long as the process lives, so only so many get one; the rest is "other". Not
// thread-safe.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace eta {

class LabelNames {
 public:
  static constexpr std::string_view kNone = "none";    // there is no name
  static constexpr std::string_view kOther = "other";  // it has no value of its own

  // The names of `listed`, or without any the first `limit` that Admit is given.
  LabelNames(const std::vector<std::string>& listed, size_t limit);

  // The label of a name that is really in use, kNone for an empty one, kOther for one that is
  // spelled like these two. The view stays good.
  std::string_view Admit(std::string_view name);
  // Likewise, for a name that anybody may have made up: it gets no value that it does not have.
  std::string_view Find(std::string_view name) const;

 private:
  const bool open_;
  const size_t limit_;
  std::set<std::string, std::less<>> names_;
};

}  // namespace eta
