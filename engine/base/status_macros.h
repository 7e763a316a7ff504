// Returns early with a status that is not OK.
#pragma once

#include "absl/status/status.h"

// Evaluates `expression`, an absl::Status, once. Returns it from the enclosing function unless it
// is OK. The function returns absl::Status or absl::StatusOr.
#define RETURN_IF_ERROR(...)                                                                      \
  do {                                                                                            \
    if (absl::Status status_of_call = (__VA_ARGS__); !status_of_call.ok()) return status_of_call; \
  } while (false)
