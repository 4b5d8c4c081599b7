// Which memory the communicators made by this thread work on.
#pragma once

#include "base/result.h"

#include <tutti/tutti.h>

namespace tutti::api {

/// InvalidUsage where no device can be used: the message says why; the choice before stays.
Status choose_device(tuttiDevice_t device);

/// What a communicator that is made now works on: comm::kHostMemory, or the current device. Unless the thread or TUTTI_DEVICE has chosen, a
/// device if there is one. InvalidUsage if one was asked for that cannot be used.
Result<int> chosen_device();

}  // namespace tutti::api
