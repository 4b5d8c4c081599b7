#include "comm/mpi_library.h"

#include <fmt/format.h>

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::comm {
namespace {

using transport::MpiService;

/// Any MPI's, before MPI_Init too: the same arguments everywhere.
using GetLibraryVersion = int (*)(char* version, int* length);
constexpr const char* kGetLibraryVersion = "MPI_Get_library_version";
/// MPICH's MPI_MAX_LIBRARY_VERSION_STRING; the others' are shorter.
constexpr std::size_t kVersionBytes = 8192;

/// The objects of this process that are called as MPI libraries are. An interpreter's module may have loaded one for itself only.
std::vector<std::string> objects_named_mpi() {
  std::vector<std::string> names;
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* out) {
        const std::string_view path = object->dlpi_name == nullptr ? "" : object->dlpi_name;
        const std::size_t slash = path.rfind('/');
        if (path.substr(slash == std::string_view::npos ? 0 : slash + 1).starts_with("libmpi"))
          static_cast<std::vector<std::string>*>(out)->emplace_back(path);
        return 0;
      },
      &names);
  return names;
}

GetLibraryVersion find_get_library_version() {
  if (void* symbol = dlsym(RTLD_DEFAULT, kGetLibraryVersion)) return reinterpret_cast<GetLibraryVersion>(symbol);
  for (const std::string& name : objects_named_mpi()) {
    void* const object = dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (object == nullptr) continue;
    void* const symbol = dlsym(object, kGetLibraryVersion);
    dlclose(object);  // it stays loaded: somebody else has it open
    if (symbol != nullptr) return reinterpret_cast<GetLibraryVersion>(symbol);
  }
  return nullptr;
}

/// "Open MPI v4.1.4, package: ..." or "MPICH Version: 4.0.2 ..."; "" where no MPI is loaded.
std::string loaded_version() {
  const GetLibraryVersion get = find_get_library_version();
  if (get == nullptr) return "";
  std::string text(kVersionBytes, '\0');
  int length = 0;
  if (get(text.data(), &length) != 0 || length < 0) return "unknown";
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

/// MVAPICH2 and Intel MPI have MPICH's binary interface. "" for others.
std::string kind_of(std::string_view version) {
  if (version.find("Open MPI") != std::string_view::npos) return "openmpi";
  for (const char* name : {"MPICH", "MVAPICH", "Intel(R) MPI"}) {
    if (version.find(name) != std::string_view::npos) return "mpich";
  }
  return "";
}

/// In the folder of the object that this code is in.
std::string path_of(const std::string& kind) {
  std::string file = fmt::format("libtutti-{}.so", kind);
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&mpi_service), &here) == 0 || here.dli_fname == nullptr) return file;
  const std::string path = here.dli_fname;
  const std::size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? file : path.substr(0, slash + 1) + file;
}

Result<const MpiService*> load(const std::string& kind) {
  const std::string path = path_of(kind);
  void* const object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (object == nullptr) {
    return error(Code::kSystem, fmt::format("the plug-in for this MPI cannot be loaded: {}", dlerror()));
  }
  const auto entry = reinterpret_cast<transport::MpiServiceEntry>(dlsym(object, transport::kMpiServiceSymbol));
  const MpiService* const service = entry == nullptr ? nullptr : entry();
  if (service == nullptr || service->version == nullptr) {
    return error(Code::kSystem, fmt::format("{} is no such plug-in: it lacks {}", path, transport::kMpiServiceSymbol));
  }
  if (std::strcmp(service->version, transport::kMpiServiceVersion) != 0) {
    return error(Code::kSystem, fmt::format("{} is \"{}\", this library \"{}\": install both from one build", path,
                                            service->version, transport::kMpiServiceVersion));
  }
  return service;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

Result<const MpiService*> load_for(const std::string& version) {
  const std::string kind = kind_of(version);
  if (!kind.empty()) return load(kind);
  return error(Code::kSystem,
               fmt::format("there is no plug-in for this MPI: {}; Open MPI and MPICH have one", first_line(version)));
}

}  // namespace

Result<const MpiService*> mpi_service() {
  const std::string version = loaded_version();
  if (version.empty()) return error(Code::kSystem, "the process has loaded no MPI library");
  return load_for(version);
}

Result<const MpiService*> load_mpi_service(const std::string& launchers_kind) {
  // A program that is linked with an MPI has chosen it.
  if (const std::string version = loaded_version(); !version.empty()) return load_for(version);
  if (!launchers_kind.empty()) return load(launchers_kind);
  return error(Code::kInvalidUsage,
               "no MPI launcher's variables are set: start the program with mpirun, or with srun "
               "--mpi=pmix or --mpi=pmi2");
}

}  // namespace tutti::comm
