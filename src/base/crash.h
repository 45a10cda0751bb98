// The last words of a program that dies of a fault of its own: one line on stderr and in the log file.
#pragma once

namespace osdn {

/// From now on a fatal signal (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT) and an exception that nothing
/// catches are told on stderr and in the log file, with the addresses of the calls; then the process dies as
/// it would have, core dump included. Signals that have a handler already (a sanitizer's) are left alone.
void report_crashes();

}  // namespace osdn
