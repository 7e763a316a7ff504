#include "training/cuda/host/collective.h"

#include "absl/status/status.h"

#ifdef ETA_HAS_NCCL

#include <nccl.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/host/shared_library.h"

namespace eta::training::cuda {
namespace {

constexpr const char* kFiles[] = {"libnccl.so.2", "libnccl.so"};

struct Nccl {
  decltype(&ncclCommInitAll) CommInitAll;
  decltype(&ncclCommDestroy) CommDestroy;
  decltype(&ncclAllReduce) AllReduce;
  decltype(&ncclGetErrorString) GetErrorString;
};

absl::StatusOr<Nccl> LoadTable() {
  eta::cuda::SharedLibrary library(kFiles);
  if (!library.found()) {
    return absl::UnavailableError(
        "devices: several devices need NCCL; there is no libnccl.so.2 among the loader's files");
  }
  Nccl table = {};
  library.Find("ncclCommInitAll", table.CommInitAll);
  library.Find("ncclCommDestroy", table.CommDestroy);
  library.Find("ncclAllReduce", table.AllReduce);
  library.Find("ncclGetErrorString", table.GetErrorString);
  if (!library.missing().empty()) {
    return absl::UnavailableError(
        absl::StrCat("devices: NCCL has no function ", library.missing()));
  }
  return table;
}

class NcclCollective final : public Collective {
 public:
  NcclCollective(const Nccl& nccl, eta::cuda::Device& device, ncclComm_t communicator)
      : nccl_(nccl), device_(device), communicator_(communicator) {}
  ~NcclCollective() override {
    device_.MakeCurrent();
    nccl_.CommDestroy(communicator_);
  }

  void AllReduce(float* values, int64_t count) override {
    const ncclResult_t result =
        nccl_.AllReduce(values, values, static_cast<size_t>(count), ncclFloat32, ncclSum,
                        communicator_, device_.stream());
    if (result == ncclSuccess) return;
    device_.Fail(absl::InternalError(absl::StrCat("cuda: device ", device_.index(),
                                                  ": all-reduce: ", nccl_.GetErrorString(result))));
  }

 private:
  const Nccl& nccl_;
  eta::cuda::Device& device_;
  ncclComm_t communicator_;
};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Collective>>> Collective::Open(
    const std::vector<eta::cuda::Device*>& devices) {
  static const absl::StatusOr<Nccl>& nccl = *new absl::StatusOr<Nccl>(LoadTable());
  if (!nccl.ok()) return nccl.status();
  std::vector<int> indices;
  for (const eta::cuda::Device* device : devices) indices.push_back(device->index());
  std::vector<ncclComm_t> communicators(devices.size());
  const ncclResult_t result =
      nccl->CommInitAll(communicators.data(), static_cast<int>(devices.size()), indices.data());
  if (result != ncclSuccess) {
    return absl::UnavailableError(absl::StrCat("devices: NCCL: ", nccl->GetErrorString(result)));
  }
  std::vector<std::unique_ptr<Collective>> ends;
  for (size_t i = 0; i < devices.size(); ++i) {
    ends.push_back(std::make_unique<NcclCollective>(*nccl, *devices[i], communicators[i]));
  }
  return ends;
}

}  // namespace eta::training::cuda

#else

namespace eta::training::cuda {

absl::StatusOr<std::vector<std::unique_ptr<Collective>>> Collective::Open(
    const std::vector<eta::cuda::Device*>& /*devices*/) {
  return absl::UnavailableError(
      "devices: several devices need NCCL, whose header nccl.h was missing from this build");
}

}  // namespace eta::training::cuda

#endif
