#include "service/process/system_call_filter.h"

#include <linux/sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"

namespace eta {
namespace {

// Whatever their arguments. Names that an architecture does not have are left out by libseccomp.
constexpr int kForbidden[] = {
    // other programs and processes
    SCMP_SYS(execve), SCMP_SYS(execveat), SCMP_SYS(ptrace), SCMP_SYS(process_vm_readv),
    SCMP_SYS(process_vm_writev), SCMP_SYS(process_madvise), SCMP_SYS(pidfd_getfd), SCMP_SYS(kcmp),
    // namespaces and mounts
    SCMP_SYS(unshare), SCMP_SYS(setns), SCMP_SYS(chroot), SCMP_SYS(pivot_root), SCMP_SYS(mount),
    SCMP_SYS(umount2), SCMP_SYS(move_mount), SCMP_SYS(open_tree), SCMP_SYS(fsopen),
    SCMP_SYS(fsconfig), SCMP_SYS(fsmount), SCMP_SYS(fspick), SCMP_SYS(mount_setattr),
    SCMP_SYS(swapon), SCMP_SYS(swapoff), SCMP_SYS(quotactl), SCMP_SYS(open_by_handle_at),
    SCMP_SYS(name_to_handle_at), SCMP_SYS(fanotify_init), SCMP_SYS(mknod), SCMP_SYS(mknodat),
    // rights
    SCMP_SYS(setuid), SCMP_SYS(setgid), SCMP_SYS(setreuid), SCMP_SYS(setregid), SCMP_SYS(setresuid),
    SCMP_SYS(setresgid), SCMP_SYS(setfsuid), SCMP_SYS(setfsgid), SCMP_SYS(setgroups),
    SCMP_SYS(capset), SCMP_SYS(personality),
    // the kernel and the machine
    SCMP_SYS(bpf), SCMP_SYS(perf_event_open), SCMP_SYS(userfaultfd), SCMP_SYS(io_uring_setup),
    SCMP_SYS(io_uring_enter), SCMP_SYS(io_uring_register), SCMP_SYS(init_module),
    SCMP_SYS(finit_module), SCMP_SYS(delete_module), SCMP_SYS(kexec_load),
    SCMP_SYS(kexec_file_load), SCMP_SYS(reboot), SCMP_SYS(acct), SCMP_SYS(syslog),
    SCMP_SYS(add_key), SCMP_SYS(request_key), SCMP_SYS(keyctl), SCMP_SYS(iopl), SCMP_SYS(ioperm),
    SCMP_SYS(modify_ldt), SCMP_SYS(settimeofday), SCMP_SYS(clock_settime), SCMP_SYS(clock_adjtime),
    SCMP_SYS(adjtimex), SCMP_SYS(sethostname), SCMP_SYS(setdomainname), SCMP_SYS(vhangup),
    SCMP_SYS(lookup_dcookie), SCMP_SYS(uselib), SCMP_SYS(nfsservctl)};

constexpr int kSocketCalls[] = {SCMP_SYS(socket), SCMP_SYS(socketpair), SCMP_SYS(connect),
                                SCMP_SYS(bind),   SCMP_SYS(listen),     SCMP_SYS(accept),
                                SCMP_SYS(accept4)};

// By name; what is open already can be used.
constexpr int kFileCalls[] = {
    SCMP_SYS(open),     SCMP_SYS(openat),   SCMP_SYS(openat2),   SCMP_SYS(creat),
    SCMP_SYS(unlink),   SCMP_SYS(unlinkat), SCMP_SYS(rename),    SCMP_SYS(renameat),
    SCMP_SYS(mkdir),    SCMP_SYS(mkdirat),  SCMP_SYS(renameat2), SCMP_SYS(rmdir),
    SCMP_SYS(link),     SCMP_SYS(linkat),   SCMP_SYS(symlink),   SCMP_SYS(symlinkat),
    SCMP_SYS(truncate), SCMP_SYS(chmod),    SCMP_SYS(fchmodat),  SCMP_SYS(chown),
    SCMP_SYS(lchown),   SCMP_SYS(fchownat), SCMP_SYS(setxattr),  SCMP_SYS(lsetxattr)};

constexpr uint64_t kInt = 0xffffffff;  // the kernel reads these arguments as 32 bits
constexpr unsigned kLastFamily = 63;   // the kernel knows 46 of them
constexpr unsigned kLastNetlink = 31;

using Arguments = std::initializer_list<scmp_arg_cmp>;

class Filter {
 public:
  Filter() : context_(seccomp_init(SCMP_ACT_ALLOW)) {}

  void Forbid(int call, Arguments where = {}, int error = EPERM) {
    if (!context_ || code_ != 0) return;
    code_ = seccomp_rule_add_array(context_.get(), SCMP_ACT_ERRNO(static_cast<uint16_t>(error)),
                                   call, static_cast<unsigned>(where.size()), where.begin());
  }

  absl::Status Load() {
    if (context_ && code_ == 0) code_ = seccomp_load(context_.get());
    if (context_ && code_ == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "system calls cannot be filtered here: ", context_ ? "error " : "no memory, ", -code_));
  }

 private:
  using Release = std::integral_constant<decltype(&seccomp_release), &seccomp_release>;
  std::unique_ptr<std::remove_pointer_t<scmp_filter_ctx>, Release> context_;
  int code_ = 0;
};

scmp_arg_cmp Equals(unsigned argument, uint64_t mask, uint64_t value) {
  return {argument, SCMP_CMP_MASKED_EQ, mask, value};
}

// Threads only: no other process, by whichever call.
void ForbidProcesses(Filter& filter) {
  for (const int call : {SCMP_SYS(fork), SCMP_SYS(vfork)}) filter.Forbid(call);
  filter.Forbid(SCMP_SYS(clone), {Equals(0, CLONE_THREAD, 0)});
  // Its arguments are in memory, where a filter cannot look; the C library takes clone then.
  filter.Forbid(SCMP_SYS(clone3), {}, ENOSYS);
}

void ForbidSockets(Filter& filter) {
  const std::vector<unsigned> allowed = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK};
  for (unsigned family = 0; family <= kLastFamily; ++family) {
    if (std::find(allowed.begin(), allowed.end(), family) != allowed.end()) continue;
    filter.Forbid(SCMP_SYS(socket), {Equals(0, kInt, family)});
  }
  constexpr uint64_t kTypeMask = 0xf;  // without SOCK_CLOEXEC and SOCK_NONBLOCK
  for (const unsigned family : {AF_INET, AF_INET6}) {
    for (const unsigned type : {SOCK_RAW, SOCK_PACKET}) {
      filter.Forbid(SCMP_SYS(socket), {Equals(0, kInt, family), Equals(1, kTypeMask, type)});
    }
  }
  // The resolver asks NETLINK_ROUTE, number 0, which addresses this host has.
  for (unsigned protocol = 1; protocol <= kLastNetlink; ++protocol) {
    filter.Forbid(SCMP_SYS(socket), {Equals(0, kInt, AF_NETLINK), Equals(2, kInt, protocol)});
  }
}

// A byte put into a terminal's input is a command of whoever sits there.
void ForbidTerminals(Filter& filter) {
  for (const unsigned request : {TIOCSTI, TIOCLINUX}) {
    filter.Forbid(SCMP_SYS(ioctl), {Equals(1, kInt, request)});
  }
}

// Libraries are mapped executable and never written, so they load as ever. A file that was written
// could be mapped so, too; one in memory alone lies beyond every mount's noexec.
void ForbidGeneratedCode(Filter& filter) {
  constexpr uint64_t kBoth = PROT_WRITE | PROT_EXEC;
  filter.Forbid(SCMP_SYS(mmap), {Equals(2, kBoth, kBoth)});
  for (const int call : {SCMP_SYS(mprotect), SCMP_SYS(pkey_mprotect)}) {
    filter.Forbid(call, {Equals(2, PROT_EXEC, PROT_EXEC)});
  }
  filter.Forbid(SCMP_SYS(shmat), {Equals(2, SHM_EXEC, SHM_EXEC)});
  for (const int call : {SCMP_SYS(memfd_create), SCMP_SYS(memfd_secret)}) filter.Forbid(call);
}

}  // namespace

absl::Status FilterSystemCalls(const SystemCallFilterOptions& options) {
  Filter filter;
  for (const int call : kForbidden) filter.Forbid(call);
  if (!options.may_fork) ForbidProcesses(filter);
  if (options.may_make_sockets) {
    ForbidSockets(filter);
  } else {
    for (const int call : kSocketCalls) filter.Forbid(call);
  }
  if (!options.may_open_files) {
    for (const int call : kFileCalls) filter.Forbid(call);
  }
  ForbidTerminals(filter);
  if (!options.allow_generated_code) ForbidGeneratedCode(filter);
  return filter.Load();
}

}  // namespace eta
