// SPDX-License-Identifier: MIT
//
// Tells systemd how the service is doing (sd_notify(3)), when it asks to be told. A datagram to
// $NOTIFY_SOCKET; not worth a library that drags compression code into the process.
#pragma once

#include <string_view>

namespace allowd::io {

// "READY=1", "STOPPING=1" and the like. Does nothing when no service manager listens.
void notify_service_manager(std::string_view state);

}  // namespace allowd::io
