#include "base/result.h"

#include <cerrno>
#include <cstring>

namespace tutti {

Error system_error(std::string what, std::source_location where) {
  const int number = errno;
  char text[128];
  what += ": ";
  what += strerror_r(number, text, sizeof(text));
  return Error{Code::kSystem, std::move(what), where};
}

}  // namespace tutti
