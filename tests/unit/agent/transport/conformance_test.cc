// The conformance suite over the transports of this agent, and over the decorator when it does no
// harm.
#include "tests/unit/agent/transport/conformance.h"

namespace xfer {
namespace {

INSTANTIATE_TEST_SUITE_P(
    All, TransportConformance,
    ::testing::Values(
        HarnessFactory{"Local", [] { return std::make_unique<LocalHarness>(); }},
        HarnessFactory{"Tcp", [] { return std::make_unique<TcpHarness>(); }},
        HarnessFactory{"FaultyLocal", [] { return std::make_unique<LocalHarness>(FaultPlan{}); }},
        HarnessFactory{"FaultyTcp", [] { return std::make_unique<TcpHarness>(FaultPlan{}); }}),
    HarnessName);

}  // namespace
}  // namespace xfer
