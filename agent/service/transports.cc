#include "agent/service/transports.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "agent/transport/local.h"
#include "agent/transport/verbs/device.h"
#include "common/base/status.h"

namespace xfer {
namespace {

constexpr int32_t kMaxNics = 256;

absl::StatusOr<std::unique_ptr<VerbsTransport>> MakeVerbs(const TransportsOptions& options,
                                                          const NicChoice& nics,
                                                          ReceiveState& receive) {
  VerbsOptions verbs;
  verbs.node = options.node;
  verbs.incarnation = options.incarnation;
  verbs.table = receive.For("verbs");
  verbs.control = options.verbs_control;
  verbs.tuning.nics = nics.names;
  return MakeVerbsTransport(verbs);
}

}  // namespace

absl::StatusOr<TransportNames> ParseTransports(absl::string_view text) {
  TransportNames names;
  if (text == "auto") {
    names.local = names.verbs = names.tcp = names.automatic = true;
    return names;
  }
  for (const absl::string_view name : absl::StrSplit(text, ',')) {
    bool* const known = name == "local"   ? &names.local
                        : name == "verbs" ? &names.verbs
                        : name == "tcp"   ? &names.tcp
                                          : nullptr;
    if (known == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--transport ", text, ": \"", name,
                       "\" is unknown; use auto, or some of local, verbs and tcp"));
    }
    *known = true;
  }
  return names;
}

absl::StatusOr<NicChoice> ParseNics(absl::string_view text) {
  NicChoice choice;
  if (text.empty()) return choice;
  int32_t count = 0;
  if (absl::SimpleAtoi(text, &count)) {
    if (count < 1 || count > kMaxNics) {
      return absl::InvalidArgumentError(
          absl::StrCat("--nics ", text, ": the number must be 1 to ", kMaxNics));
    }
    choice.count = count;
    return choice;
  }
  choice.names = absl::StrSplit(text, ',');
  for (const std::string& name : choice.names) {
    XFER_RETURN_IF_ERROR(Annotate(verbs::ParseNicName(name).status(), "--nics"));
  }
  return choice;
}

absl::StatusOr<Transports> Transports::Make(const TransportsOptions& options,
                                            ReceiveState& receive) {
  XFER_ASSIGN_OR_RETURN(const TransportNames names, ParseTransports(options.transport));
  XFER_ASSIGN_OR_RETURN(const NicChoice nics, ParseNics(options.nics));
  if (!nics.names.empty() && !names.verbs) {
    return absl::InvalidArgumentError(
        absl::StrCat("--nics ", options.nics, " names RDMA devices, and --transport ",
                     options.transport, " leaves verbs out; add verbs or drop --nics"));
  }
  Transports made;
  made.nics_ = nics.count;
  if (names.local) {
    LocalOptions local;
    local.table = receive.For("local");
    made.local_ = MakeLocalTransport(local);
  }
  if (names.verbs) {
    absl::StatusOr<std::unique_ptr<VerbsTransport>> verbs = MakeVerbs(options, nics, receive);
    if (verbs.ok()) {
      made.verbs_ = *std::move(verbs);
      const std::vector<std::string> ports = made.verbs_->ports();
      made.nics_ = static_cast<int32_t>(ports.size());
      spdlog::info("RDMA over {}", absl::StrJoin(ports, ", "));
    } else if (!names.automatic || !nics.names.empty()) {
      return absl::Status(
          verbs.status().code(),
          absl::StrCat(verbs.status().message(),
                       "; `xferctl doctor` says what this node lacks; without --transport ",
                       names.automatic ? "and --nics" : "verbs", " the agent goes by tcp"));
    } else {
      spdlog::info("no RDMA here, so other nodes are reached by tcp: {}",
                   std::string(verbs.status().message()));
    }
  }
  if (names.tcp) {
    TcpOptions tcp;
    tcp.listen_address = options.data_listen;
    tcp.node = options.node;
    tcp.incarnation = options.incarnation;
    tcp.streams = options.tcp_streams;
    tcp.table = receive.For("tcp");
    XFER_ASSIGN_OR_RETURN(made.tcp_, MakeTcpTransport(tcp));
  }
  return made;
}

std::vector<Transport*> Transports::all() const {
  std::vector<Transport*> all;
  for (Transport* transport :
       {local_.get(), static_cast<Transport*>(verbs_.get()), static_cast<Transport*>(tcp_.get())}) {
    if (transport != nullptr) all.push_back(transport);
  }
  return all;
}

}  // namespace xfer
