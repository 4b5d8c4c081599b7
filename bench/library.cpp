#include "library.h"

#include <tutti/tutti.h>

#include <fmt/format.h>

#include <dlfcn.h>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

namespace tutti::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNccl = "libnccl.so.2";
constexpr const char* kTutti = "libtutti.so.0";

Library linked() {
  Library library;
  library.set_device = tuttiSetDevice;
#define TUTTI_TAKE(name) library.name = ::name;
  TUTTI_MEASURED_FUNCTIONS(TUTTI_TAKE)
#undef TUTTI_TAKE
  return library;
}

/// What the loader's cache has, a path a line.
std::vector<std::string> listed_by_ldconfig() {
  const std::unique_ptr<FILE, int (*)(FILE*)> list(popen("PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null", "r"),
                                                   pclose);
  std::vector<std::string> paths;
  std::array<char, 4096> buffer{};
  while (list && std::fgets(buffer.data(), static_cast<int>(buffer.size()), list.get())) {
    const std::string line = buffer.data();  // "	libnccl.so.2 (libc6,x86-64) => /usr/lib/libnccl.so.2"
    const std::size_t arrow = line.find("=> ");
    if (line.find(fmt::format("\t{} ", kNccl)) == 0 && arrow != std::string::npos)
      paths.push_back(line.substr(arrow + 3, line.size() - arrow - 4));
  }
  return paths;
}

/// Where the loader looks for what tutti-perf opens: LD_LIBRARY_PATH, and the system's folders.
std::vector<std::string> searched_by_loader() {
  std::vector<std::string> paths;
  void* const program = dlopen(nullptr, RTLD_NOW);
  Dl_serinfo size{};
  if (program == nullptr || dlinfo(program, RTLD_DI_SERINFOSIZE, &size) != 0) return paths;
  std::vector<std::max_align_t> memory(size.dls_size / sizeof(std::max_align_t) + 1);
  auto* const list = new (memory.data()) Dl_serinfo(size);
  if (dlinfo(program, RTLD_DI_SERINFO, list) != 0) return paths;
  for (unsigned n = 0; n < list->dls_cnt; ++n)
    paths.push_back(fmt::format("{}/{}", list->dls_serpath[n].dls_name, kNccl));
  return paths;
}

std::vector<std::string> usual_places() {
  std::vector<std::string> paths = searched_by_loader();
  for (std::string& path : listed_by_ldconfig()) paths.push_back(std::move(path));
  for (const char* folder : {"/usr/local/cuda/lib64", "/usr/local/cuda/lib"})
    paths.push_back(fmt::format("{}/{}", folder, kNccl));
  return paths;
}

fs::path file_of_this() {
  Dl_info info{};
  std::error_code ignored;
  return dladdr(reinterpret_cast<const void*>(&tuttiGetVersionString), &info) != 0
             ? fs::canonical(info.dli_fname, ignored)
             : fs::path();
}

Error refused(const std::string& asked, const std::string& why) {
  return error(Code::kInvalidArgument, fmt::format("--against {}: {}", asked, why));
}

}  // namespace

Status Library::status(ncclResult_t code, std::string_view what) const {
  if (code == ncclSuccess) return {};
  const char* const reason = ncclGetLastError(nullptr);
  // NVIDIA's last error may be of a call before, or empty.
  std::string text = ncclGetErrorString(code);
  if (reason && *reason) text = file.empty() ? reason : fmt::format("{}: {}", text, reason);
  return error(static_cast<Code>(code),
               file.empty() ? named(what, text) : fmt::format("{} of {}: {}", what, file, text));
}

Result<ncclComm_t> Library::join(const ncclUniqueId& id, int rank, int ranks) const {
  ncclComm_t comm = nullptr;
  ncclResult_t code = ncclCommInitRank(&comm, ranks, id, rank);
  // NCCL_COMM_BLOCKING=0 makes the communicator non-blocking behind our back.
  while (code == ncclInProgress) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (const ncclResult_t query = ncclCommGetAsyncError(comm, &code); query != ncclSuccess) code = query;
  }
  TUTTI_TRY(status(code, "ncclCommInitRank"));
  return comm;
}

const Library& this_library() {
  static const Library library = linked();
  return library;
}

Result<std::string> find_other(const std::string& asked) {
  std::error_code failed;
  if (asked == "nccl") {
    for (const std::string& place : usual_places()) {
      const fs::path file = fs::canonical(place, failed);
      if (!failed && !fs::exists(file.parent_path() / kTutti, failed)) return file.string();
    }
    return refused(
        asked,
        "the loader's folders, ldconfig's list and /usr/local/cuda have no libnccl.so.2 but Tutti's; name its file");
  }
  fs::path file = fs::canonical(asked, failed);
  if (failed) return refused(asked, failed.message());
  // Tutti's libnccl.so.2 is jumps into its libtutti.so.0, for which the one that is loaded already would be taken.
  if (const fs::path code = file.parent_path() / kTutti; fs::exists(code, failed)) file = fs::canonical(code, failed);
  if (fs::equivalent(file, file_of_this(), failed))
    return refused(asked, "that is the library that is measured already");
  return file.string();
}

Result<Library> open_other(const std::string& file) {
  // Calls that the library makes to functions of its own must not end in this library's, which have the same names.
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (handle == nullptr) return error(Code::kInvalidUsage, fmt::format("--against {}", dlerror()));
  Library library;
  library.file = file;
  std::string missing;
  const auto look_up = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
#define TUTTI_LOOK_UP(name) look_up(library.name, #name);
  TUTTI_MEASURED_FUNCTIONS(TUTTI_LOOK_UP)
#undef TUTTI_LOOK_UP
  if (!missing.empty())
    return error(Code::kInvalidUsage,
                 fmt::format("--against {}: it has no {}; an NCCL of 2.28 or later is needed", file, missing));
  library.set_device = reinterpret_cast<decltype(library.set_device)>(dlsym(handle, "tuttiSetDevice"));
  if (library.ncclAllReduce == &::ncclAllReduce || library.set_device == &::tuttiSetDevice)
    return error(Code::kInvalidUsage,
                 fmt::format("--against {}: its functions are those of the library that is measured already", file));
  return library;
}

}  // namespace tutti::bench
