// The standard headers and fmt, which most files include: compiled once for each target (cpp_pch in its meson.build) instead of
// once for each file, which halves a build. Files still include what they use: `meson configure -Db_pch=false build` shows who does not.
#ifndef TUTTI_PCH_STANDARD_H
#define TUTTI_PCH_STANDARD_H

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#endif
