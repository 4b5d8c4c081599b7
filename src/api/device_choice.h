// Which memory the communicators made by this thread work on.
#pragma once

#include "base/result.h"

#include <tutti/tutti.h>

namespace tutti::api {

/// InvalidUsage where this build cannot serve it; the choice before stays.
Status choose_device(tuttiDevice_t device);

/// InvalidUsage if the environment asks this thread's communicators onto a device that cannot be served.
Status check_device();

}  // namespace tutti::api
