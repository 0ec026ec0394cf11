// Starting one program as a child that cannot outlive this process.
#ifndef XFER_XFERCTL_RUN_PROCESS_H_
#define XFER_XFERCTL_RUN_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/unique_fd.h"

namespace xfer {

// The descriptor under which a child finds the pipe for its "ready" line.
inline constexpr int kChildReadyFd = 3;

// `name` beside this program's own file, else on PATH. NotFound says where it was looked for.
absl::StatusOr<std::string> FindProgram(const std::string& name);

struct SpawnedProcess {
  pid_t pid = -1;
  UniqueFd pidfd;
  UniqueFd ready;  // read end; non-blocking; end of file once the child has closed or ended
};

// Starts `program` with stdin from /dev/null, stdout and stderr appended to the file `log`, and
// "--ready-fd 3" behind `args`. The child has a process group of its own, so that Ctrl-C on a
// terminal reaches this process alone, and gets SIGKILL when the calling thread ends: call it from
// the main thread.
absl::StatusOr<SpawnedProcess> Spawn(const std::string& program,
                                     const std::vector<std::string>& args, const std::string& log);

// Sends a signal to this very process, whoever may have its pid by now.
void SendSignal(const SpawnedProcess& process, int signal);

// "exited with status 1" or "was ended by signal 9 (Killed)"; `code` is a siginfo's si_code.
std::string DescribeExit(int code, int status);

}  // namespace xfer

#endif  // XFER_XFERCTL_RUN_PROCESS_H_
