# The processor levels: the compiler flags of each, which levels a processor has, and which are built.
#
# The required processor flags of a level, and the preferred levels, are also in appliance/catalog/kernel_sets.py and profiles/; a test
# compares them for every machine of profiles/hardware. Run as a script, this file prints the levels that would be built:
#   cmake [-DAPPLIANCE_LEVELS=...] [-DAPPLIANCE_CPU_INFO=/proc/cpuinfo] -P kernels/levels.cmake
cmake_minimum_required(VERSION 3.24)

set(APPLIANCE_FLAGS_generic "")
set(APPLIANCE_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(APPLIANCE_FLAGS_avx512 ${APPLIANCE_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
set(APPLIANCE_FLAGS_avx512_vnni ${APPLIANCE_FLAGS_avx512} -mavx512vnni)
set(APPLIANCE_FLAGS_avx512_bf16 ${APPLIANCE_FLAGS_avx512_vnni} -mavx512bf16)
# On processors with AMX, vectors multiply f32 faster than bf16.
set(APPLIANCE_FLAGS_amx ${APPLIANCE_FLAGS_avx512_vnni} -mamx-tile -mamx-bf16 -mamx-int8)
# The AVX-512 and AMX sources on emulated instructions, for tests on any machine with AVX2. -O1 replaces -O3: vectors wider than
# a register would compile three times as long and hardly run faster.
set(APPLIANCE_FLAGS_emulated ${APPLIANCE_FLAGS_avx2} -DAPPL_EMULATE_AVX512 -O1)
set(APPLIANCE_FLAGS_emulated_amx ${APPLIANCE_FLAGS_avx2} -DAPPL_EMULATE_AMX)

# Names and flags as in /proc/cpuinfo. The best level is first.
set(APPLIANCE_CPU_avx2 avx2 f16c fma)
set(APPLIANCE_CPU_avx512 ${APPLIANCE_CPU_avx2} avx512bw avx512dq avx512f avx512vl)
set(APPLIANCE_CPU_avx512_vnni ${APPLIANCE_CPU_avx512} avx512_vnni)
set(APPLIANCE_CPU_avx512_bf16 ${APPLIANCE_CPU_avx512_vnni} avx512_bf16 AuthenticAMD)  # Intel's take bf16 at half the rate of f32
set(APPLIANCE_CPU_amx ${APPLIANCE_CPU_avx512_vnni} amx_bf16 amx_int8 amx_tile)
set(APPLIANCE_X86_LEVELS amx avx512_bf16 avx512_vnni avx512 avx2 generic)
set(APPLIANCE_TEST_LEVELS emulated emulated_amx)

set(APPLIANCE_CPU_INFO /proc/cpuinfo CACHE FILEPATH "Where the processor says what it has")

# The levels that this processor runs, the one that plans choose first. An unknown processor is an error and does not silently get
# the generic level.
function(appliance_levels_here result)
  set(lines "")
  if(NOT CMAKE_CROSSCOMPILING AND EXISTS ${APPLIANCE_CPU_INFO})
    file(STRINGS ${APPLIANCE_CPU_INFO} lines REGEX "^(vendor_id|flags)[\t ]*:")
  endif()
  if(NOT lines)
    message(FATAL_ERROR "The levels of the processor that this build is for are not known here: name them, "
                        "as in APPLIANCE_LEVELS=avx2,generic, or build them all with APPLIANCE_LEVELS=all.")
  endif()
  list(SUBLIST lines 0 2 lines)  # of the first processor
  string(REGEX MATCHALL "[A-Za-z0-9_]+" has "${lines}")
  set(found "")
  foreach(level IN LISTS APPLIANCE_X86_LEVELS)
    set(lacks ${APPLIANCE_CPU_${level}})
    list(REMOVE_ITEM lacks "" ${has})
    if(NOT lacks)
      list(APPEND found ${level})
    endif()
  endforeach()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# APPLIANCE_LEVELS as a list of levels; an unknown name is an error.
function(appliance_levels result)
  set(all generic)
  if(APPLIANCE_ARCHITECTURE MATCHES "x86_64|AMD64")
    set(all ${APPLIANCE_X86_LEVELS})
  endif()
  string(REGEX MATCHALL "[^,; ]+" wanted "${APPLIANCE_LEVELS}")
  set(levels "")
  foreach(level IN LISTS wanted)
    if(level STREQUAL "all")
      list(APPEND levels ${all})
    elseif(NOT level MATCHES "^(auto|here)$")
      list(APPEND levels ${level})
    elseif(all STREQUAL "generic")
      list(APPEND levels generic)
    else()
      appliance_levels_here(here)
      if(level STREQUAL "auto")
        list(GET here 0 here)
      endif()
      list(APPEND levels ${here})
    endif()
  endforeach()
  if(NOT all STREQUAL "generic")
    list(APPEND all ${APPLIANCE_TEST_LEVELS})
  endif()
  set(unknown ${levels})
  list(REMOVE_ITEM unknown ${all})
  if(unknown OR NOT levels)
    list(JOIN all ", " allowed)
    message(FATAL_ERROR "APPLIANCE_LEVELS is '${APPLIANCE_LEVELS}', but must be auto, here, all, or some of ${allowed}.")
  endif()
  list(REMOVE_DUPLICATES levels)
  set(${result} ${levels} PARENT_SCOPE)
endfunction()

if("${APPLIANCE_LEVELS}" STREQUAL "")
  set(chosen auto)
  if(NOT "$ENV{APPLIANCE_LEVELS}" STREQUAL "")
    set(chosen "$ENV{APPLIANCE_LEVELS}")
  endif()
  set(APPLIANCE_LEVELS "${chosen}" CACHE STRING "Processor levels: auto (the best of this processor), here (those that it runs), all, or names between commas" FORCE)
endif()
set(APPLIANCE_ARCHITECTURE "${CMAKE_SYSTEM_PROCESSOR}")
if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  cmake_host_system_information(RESULT APPLIANCE_ARCHITECTURE QUERY OS_PLATFORM)
  appliance_levels(levels)
  list(JOIN levels "," levels)
  message(NOTICE "${levels}")
endif()
