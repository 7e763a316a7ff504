#include "tests/testing/faults/faulty_disk.h"

#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <sstream>
#include <utility>

namespace eta {
namespace {

constexpr int64_t kSector = 512;

std::string Contents(const std::string& path) {
  std::ostringstream contents;
  contents << std::ifstream(path, std::ios::binary).rdbuf();
  return contents.str();
}

void Put(std::string_view bytes, int64_t offset, std::string& image) {
  const size_t end = static_cast<size_t>(offset) + bytes.size();
  if (image.size() < end) image.resize(end);
  bytes.copy(image.data() + offset, bytes.size());
}

}  // namespace

// An open file as SQLite sees it. The real file follows in the same memory.
struct FaultyDisk::File {
  sqlite3_file base;
  FaultyDisk* disk;
  std::shared_ptr<Inode>* inode;  // null: not tracked (a temporary file)
  sqlite3_file* below() { return reinterpret_cast<sqlite3_file*>(this + 1); }
};

struct FaultyDisk::Methods {
  static File* Of(sqlite3_file* file) { return reinterpret_cast<File*>(file); }
  static sqlite3_file* Below(sqlite3_file* file) { return Of(file)->below(); }

  static int Close(sqlite3_file* file) {
    delete Of(file)->inode;
    return Below(file)->pMethods->xClose(Below(file));
  }
  static int Read(sqlite3_file* file, void* bytes, int size, sqlite3_int64 offset) {
    FaultyDisk& disk = *Of(file)->disk;
    {
      const std::lock_guard lock(disk.mutex_);
      if (disk.Count(/*read=*/true, /*write=*/false) != Answer::kDo) return SQLITE_IOERR_READ;
    }
    return Below(file)->pMethods->xRead(Below(file), bytes, size, offset);
  }
  // If the write fails, its first half has been written.
  static int Write(sqlite3_file* file, const void* bytes, int size, sqlite3_int64 offset) {
    FaultyDisk& disk = *Of(file)->disk;
    const std::lock_guard lock(disk.mutex_);
    if (disk.dead_) return SQLITE_IOERR_WRITE;
    const Answer answer = disk.Count(false, true);
    const int part = answer == Answer::kDo || disk.dead_ ? size : size / 2;
    if (Of(file)->inode != nullptr) {
      const std::string written(static_cast<const char*>(bytes), static_cast<size_t>(part));
      (*Of(file)->inode)->pending.push_back({{}, offset, written});
    }
    if (disk.dead_) return SQLITE_IOERR_WRITE;
    const int done = Below(file)->pMethods->xWrite(Below(file), bytes, part, offset);
    if (answer == Answer::kDo) return done;
    return answer == Answer::kFailFull ? SQLITE_FULL : SQLITE_IOERR_WRITE;
  }
  static int Truncate(sqlite3_file* file, sqlite3_int64 size) {
    FaultyDisk& disk = *Of(file)->disk;
    const std::lock_guard lock(disk.mutex_);
    if (disk.dead_) return SQLITE_IOERR_TRUNCATE;
    const Answer answer = disk.Count(false, false);
    const bool under_way = answer == Answer::kDo || disk.dead_;
    if (under_way && Of(file)->inode != nullptr) (*Of(file)->inode)->pending.push_back({size});
    if (answer != Answer::kDo) return SQLITE_IOERR_TRUNCATE;
    return Below(file)->pMethods->xTruncate(Below(file), size);
  }
  static int Sync(sqlite3_file* file, int /*flags*/) {
    FaultyDisk& disk = *Of(file)->disk;
    const std::lock_guard lock(disk.mutex_);
    if (disk.dead_) return SQLITE_IOERR_FSYNC;
    const Answer answer = disk.Count(false, false);
    if (disk.dead_) return SQLITE_IOERR_FSYNC;
    if (Of(file)->inode == nullptr || disk.lying_) return SQLITE_OK;
    const std::shared_ptr<Inode>& inode = *Of(file)->inode;
    if (answer != Answer::kDo) {
      inode->durable = disk.Survivors(*inode);
      inode->pending.clear();
      return SQLITE_IOERR_FSYNC;
    }
    for (const Change& change : inode->pending) {
      if (change.truncated_to) inode->durable.resize(static_cast<size_t>(*change.truncated_to));
      eta::Put(change.bytes, change.truncated_to ? 0 : change.offset, inode->durable);
    }
    inode->pending.clear();
    // The first sync of a new file also syncs its folder, with all names in it.
    const auto named = std::find_if(disk.names_.begin(), disk.names_.end(), [&](const auto& name) {
      return name.second.now == inode && name.second.durable != inode;
    });
    if (named != disk.names_.end()) disk.SyncFolder();
    return SQLITE_OK;
  }
  static int FileSize(sqlite3_file* file, sqlite3_int64* size) {
    return Below(file)->pMethods->xFileSize(Below(file), size);
  }
  static int Lock(sqlite3_file* file, int level) {
    return Below(file)->pMethods->xLock(Below(file), level);
  }
  static int Unlock(sqlite3_file* file, int level) {
    return Below(file)->pMethods->xUnlock(Below(file), level);
  }
  static int CheckReservedLock(sqlite3_file* file, int* reserved) {
    return Below(file)->pMethods->xCheckReservedLock(Below(file), reserved);
  }
  static int FileControl(sqlite3_file* file, int operation, void* argument) {
    return Below(file)->pMethods->xFileControl(Below(file), operation, argument);
  }
  static int SectorSize(sqlite3_file* /*file*/) { return kSector; }
  static int DeviceCharacteristics(sqlite3_file* /*file*/) {
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE;
  }
  static int ShmMap(sqlite3_file* file, int page, int size, int extend, void volatile** memory) {
    return Below(file)->pMethods->xShmMap(Below(file), page, size, extend, memory);
  }
  static int ShmLock(sqlite3_file* file, int offset, int count, int flags) {
    return Below(file)->pMethods->xShmLock(Below(file), offset, count, flags);
  }
  static void ShmBarrier(sqlite3_file* file) { Below(file)->pMethods->xShmBarrier(Below(file)); }
  static int ShmUnmap(sqlite3_file* file, int remove) {
    return Below(file)->pMethods->xShmUnmap(Below(file), remove);
  }

  static FaultyDisk& DiskOf(sqlite3_vfs* vfs) { return *static_cast<FaultyDisk*>(vfs->pAppData); }

  static int Open(sqlite3_vfs* vfs, const char* path, sqlite3_file* file, int flags,
                  int* out_flags) {
    static constexpr sqlite3_io_methods kMethods = {2,
                                                    Close,
                                                    Read,
                                                    Write,
                                                    Truncate,
                                                    Sync,
                                                    FileSize,
                                                    Lock,
                                                    Unlock,
                                                    CheckReservedLock,
                                                    FileControl,
                                                    SectorSize,
                                                    DeviceCharacteristics,
                                                    ShmMap,
                                                    ShmLock,
                                                    ShmBarrier,
                                                    ShmUnmap,
                                                    nullptr,
                                                    nullptr};
    FaultyDisk& disk = DiskOf(vfs);
    const std::lock_guard lock(disk.mutex_);
    file->pMethods = nullptr;
    File* opened = new (file) File{};
    opened->disk = &disk;
    const bool tracked = path != nullptr && (flags & SQLITE_OPEN_DELETEONCLOSE) == 0;
    const bool created = tracked && access(path, F_OK) != 0;
    const bool creates = created && (flags & SQLITE_OPEN_CREATE) != 0;
    if (creates && (disk.dead_ || disk.Count(false, true) != Answer::kDo)) return SQLITE_CANTOPEN;
    const int code = disk.below_->xOpen(disk.below_, path, opened->below(), flags, out_flags);
    if (code != SQLITE_OK) {
      if (opened->below()->pMethods != nullptr) {
        opened->below()->pMethods->xClose(opened->below());
      }
      return code;
    }
    opened->base.pMethods = &kMethods;
    if (tracked) opened->inode = new std::shared_ptr<Inode>(disk.Track(path, created));
    return SQLITE_OK;
  }
  static int Delete(sqlite3_vfs* vfs, const char* path, int sync_folder) {
    FaultyDisk& disk = DiskOf(vfs);
    const std::lock_guard lock(disk.mutex_);
    if (disk.dead_) return SQLITE_IOERR_DELETE;
    const Answer answer = disk.Count(false, false);
    const bool under_way = answer == Answer::kDo || disk.dead_;
    const auto name = disk.names_.find(path);
    if (under_way && name != disk.names_.end()) name->second.now = nullptr;
    if (answer != Answer::kDo) return SQLITE_IOERR_DELETE;
    if (sync_folder != 0 && !disk.lying_) disk.SyncFolder();
    return disk.below_->xDelete(disk.below_, path, /*syncDir=*/0);
  }
};

FaultyDisk::FaultyDisk(uint32_t seed) : random_(seed), below_(sqlite3_vfs_find(nullptr)) {
  vfs_ = std::make_unique<sqlite3_vfs>(*below_);
  vfs_->szOsFile = static_cast<int>(sizeof(File)) + below_->szOsFile;
  vfs_->zName = "faulty";
  vfs_->pNext = nullptr;
  vfs_->pAppData = this;
  vfs_->xOpen = Methods::Open;
  vfs_->xDelete = Methods::Delete;
  // The other methods get the VFS as an argument and find their data in it.
  vfs_->xAccess = [](sqlite3_vfs* vfs, const char* path, int flags, int* result) {
    sqlite3_vfs* below = Methods::DiskOf(vfs).below_;
    return below->xAccess(below, path, flags, result);
  };
  vfs_->xFullPathname = [](sqlite3_vfs* vfs, const char* path, int size, char* full) {
    sqlite3_vfs* below = Methods::DiskOf(vfs).below_;
    return below->xFullPathname(below, path, size, full);
  };
  sqlite3_vfs_register(vfs_.get(), /*makeDflt=*/1);
}

FaultyDisk::~FaultyDisk() {
  sqlite3_vfs_unregister(vfs_.get());
  sqlite3_vfs_register(below_, /*makeDflt=*/1);
}

void FaultyDisk::Arm(DiskFault fault, int64_t operation) {
  const std::lock_guard lock(mutex_);
  fault_ = fault;
  until_ = operation;
  struck_ = false;
}

void FaultyDisk::Disarm() {
  const std::lock_guard lock(mutex_);
  fault_.reset();
}

bool FaultyDisk::struck() const {
  const std::lock_guard lock(mutex_);
  return struck_;
}

FaultyDisk::Answer FaultyDisk::Count(bool read, bool write) {
  if (dead_) return Answer::kFail;
  if (!fault_ || read != (*fault_ == DiskFault::kReadError)) return Answer::kDo;
  if (--until_ > 0) return Answer::kDo;
  struck_ = true;
  switch (*fault_) {
    case DiskFault::kPowerCut:
    case DiskFault::kKill:
      dead_ = true;
      return Answer::kFail;
    case DiskFault::kIoError:
    case DiskFault::kReadError:
      return until_ == 0 ? Answer::kFail : Answer::kDo;
    case DiskFault::kIoErrors:
      return Answer::kFail;
    case DiskFault::kFull:
      return write ? Answer::kFailFull : Answer::kDo;
  }
  return Answer::kDo;
}

std::shared_ptr<FaultyDisk::Inode> FaultyDisk::Track(const std::string& path, bool created) {
  Name& name = names_[path];
  if (created) {
    name.now = std::make_shared<Inode>();
  } else if (name.now == nullptr) {
    name.now = std::make_shared<Inode>(Inode{.durable = Contents(path), .pending = {}});
    name.durable = name.now;
  }
  return name.now;
}

void FaultyDisk::SyncFolder() {
  for (auto& [path, name] : names_) name.durable = name.now;
}

// Decides the fate of one sector of a write.
void FaultyDisk::Keep(std::string_view bytes, int64_t offset, std::string& image) {
  const double fate = std::generate_canonical<double, 32>(random_);
  if (fate < keep_) return eta::Put(bytes, offset, image);
  // Of the sectors that are not kept, one in five is torn; one in five is garbage if it is new.
  const size_t part = random_() % bytes.size();
  if (fate < keep_ + 0.1 * (1.0 - keep_)) {
    eta::Put(bytes.substr(0, part), offset, image);
  } else if (fate < keep_ + 0.2 * (1.0 - keep_)) {
    eta::Put(bytes.substr(part), offset + static_cast<int64_t>(part), image);
  } else if (fate < keep_ + 0.4 * (1.0 - keep_) && offset >= std::ssize(image)) {
    std::string garbage(bytes.size(), '\0');
    for (char& byte : garbage) byte = static_cast<char>(random_());
    eta::Put(garbage, offset, image);
  }
}

std::string FaultyDisk::Survivors(const Inode& inode) {
  std::string image = inode.durable;
  for (const Change& change : inode.pending) {
    if (change.truncated_to) {
      if (std::generate_canonical<double, 32>(random_) < keep_) {
        image.resize(static_cast<size_t>(*change.truncated_to));
      }
      continue;
    }
    std::string_view rest = change.bytes;
    int64_t offset = change.offset;
    while (!rest.empty()) {
      const size_t part = std::min(rest.size(), static_cast<size_t>(kSector - offset % kSector));
      Keep(rest.substr(0, part), offset, image);
      rest.remove_prefix(part);
      offset += static_cast<int64_t>(part);
    }
  }
  return image;
}

void FaultyDisk::Restart() {
  const std::lock_guard lock(mutex_);
  const bool power_cut = dead_ && fault_ == DiskFault::kPowerCut;
  dead_ = false;
  fault_.reset();
  if (!power_cut) return;
  constexpr std::array kKept = {0.0, 0.1, 0.5, 0.9, 1.0};
  keep_ = kKept[random_() % kKept.size()];
  for (auto& [path, name] : names_) {
    const bool newer = name.now != name.durable && random_() % 2 == 0;
    const std::shared_ptr<Inode> left = newer ? name.now : name.durable;
    name = {};
    if (left == nullptr) {
      std::filesystem::remove(path);
      continue;
    }
    const std::string image = Survivors(*left);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << image;
    name.now = name.durable = std::make_shared<Inode>(Inode{.durable = image, .pending = {}});
  }
}

}  // namespace eta
