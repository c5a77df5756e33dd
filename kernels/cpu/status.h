// Errors inside the library are exceptions; at the ABI they become a status and a message.
#pragma once

#include <stdexcept>
#include <string>

#include "appliance_abi.h"

namespace appl {

struct Error : std::runtime_error {
  Error(appl_status code, const std::string& message) : std::runtime_error(message), status(code) {}
  appl_status status;
};

inline void require(bool condition, const char* message) {
  if (!condition) throw Error(APPL_INVALID_ARGUMENT, message);
}

void set_last_error(const char* message);

// Runs `body` and turns its exceptions into a status.
template <class Body>
int32_t guarded(Body&& body) {
  try {
    body();
    return APPL_OK;
  } catch (const Error& error) {
    set_last_error(error.what());
    return error.status;
  } catch (const std::bad_alloc&) {
    set_last_error("out of memory");
    return APPL_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(error.what());
    return APPL_UNSUPPORTED;
  }
}

}  // namespace appl
