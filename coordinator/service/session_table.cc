#include "coordinator/service/session_table.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace xfer {

void SessionTable::Add(uint64_t session, const std::string& node, uint64_t incarnation,
                       std::shared_ptr<CommandSink> sink) {
  absl::MutexLock lock(&mu_);
  sessions_[session] = {node, incarnation, std::move(sink)};
  uint64_t& newest = by_node_[node];
  if (session > newest) newest = session;
}

void SessionTable::Remove(uint64_t session) {
  absl::MutexLock lock(&mu_);
  auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  auto newest = by_node_.find(it->second.node);
  if (newest != by_node_.end() && newest->second == session) by_node_.erase(newest);
  sessions_.erase(it);
}

void SessionTable::Close(uint64_t session, const absl::Status& why) {
  std::shared_ptr<CommandSink> sink;
  {
    absl::MutexLock lock(&mu_);
    auto it = sessions_.find(session);
    if (it == sessions_.end()) return;
    sink = it->second.sink;
  }
  sink->Close(why, /*now=*/true);
}

void SessionTable::CloseAll(const absl::Status& why) {
  std::vector<std::shared_ptr<CommandSink>> sinks;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [session, entry] : sessions_) sinks.push_back(entry.sink);
  }
  for (const auto& sink : sinks) sink->Close(why, /*now=*/false);
}

std::pair<uint64_t, std::shared_ptr<CommandSink>> SessionTable::Find(const std::string& node,
                                                                     uint64_t incarnation) const {
  absl::MutexLock lock(&mu_);
  auto newest = by_node_.find(node);
  if (newest == by_node_.end()) return {0, nullptr};
  const Entry& entry = sessions_.at(newest->second);
  if (incarnation != 0 && entry.incarnation != incarnation) return {0, nullptr};
  return {newest->second, entry.sink};
}

absl::StatusOr<uint64_t> SessionTable::SendStep(const std::string& node, uint64_t incarnation,
                                                const v1::Step& step) {
  const auto [session, sink] = Find(node, incarnation);
  v1::AgentCommand command;
  *command.mutable_step() = step;
  if (sink == nullptr || !sink->Send(std::move(command))) {
    return absl::UnavailableError(absl::StrCat(
        "node ", node, ": its agent has no open session; see whether the agent runs there"));
  }
  return session;
}

void SessionTable::EndSync(const std::string& node, uint64_t incarnation, uint64_t sync_id,
                           const std::string& reason) {
  const auto [session, sink] = Find(node, incarnation);
  if (sink == nullptr) return;
  v1::AgentCommand command;
  command.mutable_end_sync()->set_sync_id(sync_id);
  command.mutable_end_sync()->set_reason(reason);
  sink->Send(std::move(command));
}

void SessionTable::ForgetPlan(const std::string& node, uint64_t plan_id) {
  const auto [session, sink] = Find(node, 0);
  if (sink == nullptr) return;
  v1::AgentCommand command;
  command.mutable_forget_plan()->set_plan_id(plan_id);
  sink->Send(std::move(command));
}

uint64_t SessionTable::SessionOf(const std::string& node, uint64_t incarnation) {
  return Find(node, incarnation).first;
}

}  // namespace xfer
