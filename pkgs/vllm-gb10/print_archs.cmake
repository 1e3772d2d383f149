# cmake -DSOURCE=... -P print_archs.cmake: what vLLM's CMake makes of 12.1a, once for each list of CUDA 13.
include(${SOURCE}/cmake/utils.cmake)
file(READ ${SOURCE}/CMakeLists.txt text)
foreach(cuda 13.4 13.0)
  # the first string after the first comparison with that version is its list
  string(FIND "${text}" "VERSION_GREATER_EQUAL ${cuda})" start)
  string(SUBSTRING "${text}" ${start} 800 branch)
  string(REGEX MATCH "\"([0-9.;]+)\"" list "${branch}")
  cuda_archs_loose_intersection(kept "${CMAKE_MATCH_1}" "12.1a")
  message("12.1a becomes ${kept}")
endforeach()
