// Whether a file can be written: asked before anything is measured.
#pragma once

#include <string>

namespace tutti::bench {

/// Empty, or why not. A file that is not there is not there afterwards. "-": standard output.
std::string check_writable(const char* option, const std::string& path);

}  // namespace tutti::bench
