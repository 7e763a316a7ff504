// Which names may be values of a label. Profiles and tenants are named by clients, so only so many
// names have a label of their own; the rest is "other". A name that nobody has used for a while
// gives its label to one that is in use. Not thread-safe.
#pragma once

#include <compare>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/clock.h"

namespace eta {

// The value of a label; stays good whatever becomes of the name. Cheap to copy.
class Label {
 public:
  static constexpr std::string_view kNone = "none";    // there is no name
  static constexpr std::string_view kOther = "other";  // it has no label of its own

  Label() : Label(None()) {}
  static const Label& None();
  static const Label& Other();
  // The label of counts whose own label has gone: they are part of sums, and shown nowhere else.
  static const Label& Gone();

  const std::string& text() const { return *text_; }
  bool operator==(const Label& other) const {
    return text_ == other.text_ || *text_ == *other.text_;
  }
  std::strong_ordering operator<=>(const Label& other) const { return *text_ <=> *other.text_; }
  bool operator==(std::string_view text) const { return *text_ == text; }

 private:
  friend class LabelNames;
  explicit Label(std::string_view text) : text_(std::make_shared<const std::string>(text)) {}

  std::shared_ptr<const std::string> text_;
};

class LabelNames {
 public:
  // Only the names of `listed` have labels, for good; without any, the first `limit` that are used.
  LabelNames(const std::vector<std::string>& listed, size_t limit);

  // Of a name that is in use at `now`: it gets a label if there is room. None for an empty name,
  // Other for one without a label and for one that is spelled like these two.
  Label Use(std::string_view name, Clock::time_point now);
  // Likewise, for a name that anybody may have made up: it gets no label that it does not have.
  Label Find(std::string_view name) const;

  // Whether `name` would have a label if there were room, and DropIdle may make some. Cheap: while
  // all labels are in use it says no.
  bool Lacks(std::string_view name, Clock::time_point before) const;
  // Takes the label that was used least recently away if that was before `before`.
  std::optional<Label> DropIdle(Clock::time_point before);

 private:
  struct Entry {
    Label label;
    Clock::time_point used;
  };

  bool MayHaveLabel(std::string_view name) const;

  const bool open_;
  const size_t limit_;
  std::map<std::string, Entry, std::less<>> names_;
  Clock::time_point oldest_ = Clock::time_point::max();  // no label was used last before that
};

}  // namespace eta
