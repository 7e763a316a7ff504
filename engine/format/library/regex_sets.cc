#include "engine/format/library/regex_sets.h"

#include "engine/format/schema/patterns/char_set.h"

namespace eta {
namespace {

// "[a-z]" as it stands in a class.
std::string_view InClass(std::string_view set) {
  return set.substr(1, set.size() - 2);
}

}  // namespace

std::string WithJavaScriptSets(std::string_view regex) {
  const std::string any = schema::CharSet::LineEnds().Complement().Text();
  const std::string space = schema::CharSet::Spaces().Text();
  const std::string no_space = schema::CharSet::Spaces().Complement().Text();
  std::string written;
  bool in_class = false;
  for (size_t i = 0; i < regex.size(); ++i) {
    const char c = regex[i];
    if (c == '\\' && i + 1 < regex.size()) {
      const char escaped = regex[++i];
      if (escaped == 's' || escaped == 'S') {
        const std::string_view set = escaped == 's' ? space : no_space;
        written += in_class ? InClass(set) : set;
      } else {
        written += {c, escaped};
      }
    } else if (c == '.' && !in_class) {
      written += any;
    } else {
      if (c == '[') in_class = true;
      if (c == ']') in_class = false;
      written += c;
    }
  }
  return written;
}

}  // namespace eta
