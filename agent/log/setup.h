// SPDX-License-Identifier: MIT
//
// Where log lines go: standard error. Under systemd's journal, which knows the time itself, each line begins
// with its syslog priority in angle brackets instead of a time (sd-daemon(3)).
#pragma once

namespace allowd::log {

void set_up();

}  // namespace allowd::log
