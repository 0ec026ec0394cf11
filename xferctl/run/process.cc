#include "xferctl/run/process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "xferctl/environment.h"

namespace xfer {
namespace {

absl::Status SystemError(absl::string_view what) {
  return absl::InternalError(absl::StrCat(what, ": ", strerror(errno)));
}

// Between fork and exec: only async-signal-safe calls, for other threads may hold any lock.
[[noreturn]] void RunChild(const char* program, char* const* argv, int null_fd, int log_fd,
                           int ready_fd, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent ended before prctl
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  const bool placed = dup2(null_fd, STDIN_FILENO) >= 0 && dup2(log_fd, STDOUT_FILENO) >= 0 &&
                      dup2(log_fd, STDERR_FILENO) >= 0 &&
                      (ready_fd == kChildReadyFd ? fcntl(ready_fd, F_SETFD, 0)
                                                 : dup2(ready_fd, kChildReadyFd)) >= 0;
  if (!placed) _exit(127);
  syscall(SYS_close_range, kChildReadyFd + 1, ~0U, 0);
  execv(program, argv);
  constexpr char kText[] = "the program could not be run\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
  _exit(127);
}

}  // namespace

absl::StatusOr<std::string> FindProgram(const std::string& name) {
  std::array<char, PATH_MAX> self = {};
  const ssize_t length = readlink("/proc/self/exe", self.data(), self.size() - 1);
  std::string own(self.data(), std::max<ssize_t>(length, 0));
  own.resize(own.rfind('/') == std::string::npos ? 0 : own.rfind('/'));
  std::vector<std::string> directories = {own};
  for (absl::string_view part :
       absl::StrSplit(ProcessEnv("PATH").value_or(""), ':', absl::SkipEmpty())) {
    directories.emplace_back(part);
  }
  for (const std::string& directory : directories) {
    std::string path = absl::StrCat(directory, "/", name);
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return absl::NotFoundError(
      absl::StrCat(name, " is neither in ", own, " nor on PATH: install it beside xferctl"));
}

absl::StatusOr<SpawnedProcess> Spawn(const std::string& program,
                                     const std::vector<std::string>& args, const std::string& log) {
  const UniqueFd null_fd(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null_fd.valid()) return SystemError("cannot open /dev/null");
  const UniqueFd log_fd(open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log_fd.valid()) return SystemError(absl::StrCat("cannot write ", log));
  std::array<int, 2> ends = {-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return SystemError("pipe");
  SpawnedProcess process;
  process.ready = UniqueFd(ends[0]);
  const UniqueFd ready_write(ends[1]);
  fcntl(process.ready.get(), F_SETFL, O_NONBLOCK);

  std::vector<std::string> words = {program};
  words.insert(words.end(), args.begin(), args.end());
  words.insert(words.end(), {"--ready-fd", absl::StrCat(kChildReadyFd)});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  process.pid = fork();
  if (process.pid < 0) return SystemError(absl::StrCat("cannot start ", program));
  if (process.pid == 0) {
    RunChild(program.c_str(), argv.data(), null_fd.get(), log_fd.get(), ready_write.get(), parent);
  }
  process.pidfd = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
  if (!process.pidfd.valid()) {
    const absl::Status status = SystemError("pidfd_open");
    kill(process.pid, SIGKILL);
    waitpid(process.pid, nullptr, 0);
    return status;
  }
  return process;
}

void SendSignal(const SpawnedProcess& process, int signal) {
  // It can only fail because the process has ended, which its owner notices by itself.
  syscall(SYS_pidfd_send_signal, process.pidfd.get(), signal, nullptr, 0);
}

std::string DescribeExit(int code, int status) {
  if (code == CLD_EXITED) return absl::StrCat("exited with status ", status);
  return absl::StrCat("was ended by signal ", status, " (",
                      sigdescr_np(status) ? sigdescr_np(status) : "unknown", ")");
}

}  // namespace xfer
