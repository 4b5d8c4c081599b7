// The start-up benchmark's results for people and for programs.
#pragma once

#include "startup_cases.h"

#include <cstdio>
#include <string>

namespace tutti::bench {

void print_startup(std::FILE* output, const StartupResults& results);
/// `path` "-": to standard output.
Status write_startup_json(const std::string& path, const StartupResults& results);

}  // namespace tutti::bench
