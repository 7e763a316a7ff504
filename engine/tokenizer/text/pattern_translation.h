// A regular expression in Oniguruma's syntax (as Ruby has it, and Hugging Face's tokenizers uses
// it) as one that means the same to PCRE2 with UTF and UCP.
//
// They differ: \s, \w and \h; ^ and $, which are of lines in Ruby; \p{NAME}, which asks for
// scripts' extensions in PCRE2; {n,m}+, which is possessive in PCRE2 alone; {,m}; \v; \e inside of
// classes.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace eta {

// INVALID_ARGUMENT for what has no end, such as an open class; UNIMPLEMENTED, naming it, for
// constructs that are not known to mean the same: back references, named groups, conditions, nested
// classes and their intersections, POSIX brackets, \b in classes, \R, \X, \K, \G and others.
absl::StatusOr<std::string> TranslatePattern(std::string_view pattern);

}  // namespace eta
