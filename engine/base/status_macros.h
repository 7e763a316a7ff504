// Returns early with a status that is not OK.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Evaluates `expression`, an absl::Status, once. Returns it from the enclosing function unless it
// is OK. The function returns absl::Status or absl::StatusOr.
#define RETURN_IF_ERROR(...)                                                                      \
  do {                                                                                            \
    if (absl::Status status_of_call = (__VA_ARGS__); !status_of_call.ok()) return status_of_call; \
  } while (false)

// ASSIGN_OR_RETURN(lhs, expression) evaluates `expression`, an absl::StatusOr, once. Returns its
// status from the enclosing function unless it is OK. Else moves its value to `lhs`: a declaration,
// or what can be assigned to. A comma in `lhs` stands in parentheses; `expression` may hold any.
// The macro is several statements: it stands in the braces of a block, one on a line.
#define ASSIGN_OR_RETURN(lhs, ...) ASSIGN_OR_RETURN_AT(__LINE__, lhs, __VA_ARGS__)
#define ASSIGN_OR_RETURN_AT(...) ASSIGN_OR_RETURN_ON_LINE(__VA_ARGS__)
#define ASSIGN_OR_RETURN_ON_LINE(line, ...) \
  ASSIGN_OR_RETURN_FROM(value_or_status_##line, __VA_ARGS__)
#define ASSIGN_OR_RETURN_FROM(result, lhs, ...)        \
  auto result = __VA_ARGS__;                           \
  if (!result.ok()) return std::move(result).status(); \
  lhs = *std::move(result)
