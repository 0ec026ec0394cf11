// What every fuzz target shares: its seeds, written where libFuzzer looks for them.
#ifndef XFER_TESTS_FUZZ_SEEDS_H_
#define XFER_TESTS_FUZZ_SEEDS_H_

#include <string>
#include <vector>

namespace xfer::fuzz {

// Defined by each target: inputs that are accepted, to start from.
std::vector<std::string> Seeds();

// Ends the process with `what` unless `condition` holds: a property of accepted input was broken.
void Require(bool condition, const char* what);

}  // namespace xfer::fuzz

#endif  // XFER_TESTS_FUZZ_SEEDS_H_
