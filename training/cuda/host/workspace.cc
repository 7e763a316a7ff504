#include "training/cuda/host/workspace.h"

#include <algorithm>
#include <utility>

namespace eta::training::cuda {

Workspace::~Workspace() {
  device_.MakeCurrent();
  for (Piece& piece : pieces_) cudaFree(std::exchange(piece, {}).data);
}

void* Workspace::Get(Use use, size_t bytes) {
  Piece& piece = pieces_[static_cast<size_t>(use)];
  if (bytes <= piece.bytes) return piece.data;
  // cudaFree waits for the device, so nothing still reads the piece.
  device_.Check(cudaFree(std::exchange(piece, {}).data), "workspace");
  void* data = nullptr;
  const size_t size = std::max(bytes, size_t{4096});
  device_.Check(eta::cuda::AllocateMemory(&data, size), "workspace");
  if (data == nullptr) return nullptr;
  piece = {data, size};
  return data;
}

}  // namespace eta::training::cuda
