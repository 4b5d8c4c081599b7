// tutti-perf: times the collectives and checks their results. A client of the public headers only.
#include "launcher.h"
#include "options.h"

#include "base/standard_output.h"

int main(int argc, char** argv) {
  // Rank 0 finds out itself when nobody reads any more, and tells the others.
  (void)std::signal(SIGPIPE, SIG_IGN);
  const tutti::bench::ParsedOptions parsed = tutti::bench::parse_options(argc, argv);
  return tutti::end_output("tutti-perf", parsed.options ? tutti::bench::launch(*parsed.options) : parsed.exit_code);
}
