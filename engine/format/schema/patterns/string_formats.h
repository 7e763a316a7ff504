// Formats of strings as patterns: each matches nothing but what its standard allows, the lengths of
// names of hosts and mailboxes apart, and most of it.
#pragma once

#include <string_view>

#include "engine/format/schema/patterns/pattern.h"

namespace eta::schema {

struct StringFormat {
  // Null: it is a standard one that no pattern is known for, or none of the standard.
  const Pattern* pattern = nullptr;
  bool standard = false;
};

// A format of JSON Schema's vocabulary "format-assertion", or of somebody's own. Any thread.
StringFormat FindFormat(std::string_view name);

}  // namespace eta::schema
