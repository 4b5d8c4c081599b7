// tutti-perf: times the collectives and checks their results. A client of the public headers only.
#include "launcher.h"
#include "options.h"

int main(int argc, char** argv) {
  const tutti::bench::ParsedOptions parsed = tutti::bench::parse_options(argc, argv);
  return parsed.options ? tutti::bench::launch(*parsed.options) : parsed.exit_code;
}
