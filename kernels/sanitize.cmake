# Sanitizers watch the native libraries while tests run them: `make sanitize`. Reports name lines.
set(APPLIANCE_SANITIZE "" CACHE STRING "What watches the libraries in tests: address,undefined or thread; empty in what is shipped")
set_property(CACHE APPLIANCE_SANITIZE PROPERTY STRINGS "" "address,undefined" thread)

function(sanitize target)
  if(APPLIANCE_SANITIZE)
    target_compile_options(${target} PRIVATE
      -O1 -g -fno-omit-frame-pointer -fsanitize=${APPLIANCE_SANITIZE} -fno-sanitize-recover=all -Wno-error)
    target_link_options(${target} PRIVATE -fsanitize=${APPLIANCE_SANITIZE})
  endif()
endfunction()
