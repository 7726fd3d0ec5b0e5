# SPDX-License-Identifier: Apache-2.0
# Script: writes OUT, a .cpp that defines shipped_profiles() with the text of each file of PROFILES (a list
# joined by '|'). A profile's name is its file name, its summary the comment on its second line.
string(REPLACE "|" ";" PROFILES "${PROFILES}")
set(entries "")
foreach(file IN LISTS PROFILES)
  get_filename_component(name "${file}" NAME_WLE)
  file(READ "${file}" text)
  string(REGEX MATCH "\n# ([^\n]*)\n" summary "${text}")
  set(summary "${CMAKE_MATCH_1}")
  string(APPEND entries "      {\"${name}\", \"${summary}\", R\"toml(${text})toml\"},\n")
endforeach()
file(WRITE "${OUT}.new" "// Generated from runtime/config/profiles; do not edit.
#include \"runtime/config/profile.hpp\"

namespace lehr::config {

std::vector<ProfileInfo> shipped_profiles() {
  return {
${entries}  };
}

}  // namespace lehr::config
")
file(RENAME "${OUT}.new" "${OUT}")
