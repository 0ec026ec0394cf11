# cmake -DOUT=FILE.cc -DFILES=A.json|B.json -P embed_presets.cmake
# Writes a C++ file that holds the given files as raw string literals.
string(REPLACE "|" ";" FILES "${FILES}")
set(text "// Made by embed_presets.cmake from presets/*.json.\n#include \"common/model/embedded_presets.h\"\n\nnamespace xfer {\nnamespace {\n\nconstexpr EmbeddedPreset kPresets[] = {\n")
foreach(file IN LISTS FILES)
  file(READ ${file} json)
  get_filename_component(name ${file} NAME)
  string(APPEND text "    {\"${name}\", R\"preset(${json})preset\"},\n")
endforeach()
string(APPEND text "};\n\n}  // namespace\n\nabsl::Span<const EmbeddedPreset> EmbeddedPresets() { return kPresets; }\n\n}  // namespace xfer\n")
file(WRITE ${OUT} "${text}")
