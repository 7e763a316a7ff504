#include "calibration/evaluation/rivals/host_rows.h"

namespace eta {

// The last row has nothing behind its columns.
HostRows::HostRows(Backend& backend, const TensorView& tensor, int64_t count)
    : stride_(tensor.stride),
      cols_(tensor.cols),
      values_(HostCopy<float>(backend, tensor.data,
                              count > 0 ? (count - 1) * tensor.stride + tensor.cols : 0)) {}

}  // namespace eta
